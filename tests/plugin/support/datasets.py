"""Small FlashInfer-Bench data sets: definitions, workloads, and solutions of every sort."""

import json
from pathlib import Path


def definition(name, op_type, constants, *, inputs, outputs, reference):
    """A tensor is its type and its axes, which vary unless they are constants; a number is its type alone."""
    shapes = [shape.split()[1:] for shape in (*inputs.values(), *outputs.values())]
    axes = {axis: {"type": "var"} for shape in shapes for axis in shape}
    axes |= {axis: {"type": "const", "value": value} for axis, value in constants.items()}
    sides = {
        side: {tensor: {"shape": said.split()[1:] or None, "dtype": said.split()[0]} for tensor, said in of.items()}
        for side, of in (("inputs", inputs), ("outputs", outputs))
    }
    return {"name": name, "op_type": op_type, "axes": axes, **sides, "reference": reference}


GEMM = definition(
    "gemm_n8_k16",
    "gemm",
    {"N": 8, "K": 16},
    inputs={"A": "float32 M K", "B": "float32 N K"},
    outputs={"C": "float32 M N"},
    reference="import torch\n\ndef run(A, B):\n    return A @ B.T\n",
)
RMSNORM = definition(
    "rmsnorm_h32",
    "rmsnorm",
    {"hidden": 32},
    inputs={"x": "bfloat16 batch hidden", "weight": "bfloat16 hidden", "eps": "float32"},
    outputs={"y": "bfloat16 batch hidden"},
    reference=(
        "import torch\n\ndef run(x, weight, eps):\n    wide = x.float()\n"
        "    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(x.dtype)\n"
    ),
)
SAMPLING = definition(
    "top_k_sampling_v16",
    "sampling",
    {"vocab": 16},
    inputs={"probs": "float32 batch vocab", "top_k": "int32 batch"},
    outputs={"samples": "int64 batch"},
    reference="""import torch

def run(probs, top_k):
    order = probs.sort(-1, descending=True).values
    limit = order.gather(-1, top_k.long()[:, None] - 1)
    kept = torch.where(probs >= limit, probs, 0.0)
    return kept.multinomial(1)[:, 0]
""",
)
LOWBIT = {**GEMM, "name": "lowbit_gemm", "op_type": "lowbit"}
INDEXER = definition(
    "dsa_topk_indexer_h2_d8_topk4_ps2",
    "dsa_paged",
    {"heads": 2, "dim": 8, "page_size": 2, "one": 1, "packed": 12, "topk": 4},
    inputs={
        "q_index_fp8": "float8_e4m3fn batch heads dim",
        "k_index_cache_fp8": "int8 pages page_size one packed",
        "weights": "float32 batch heads",
        "seq_lens": "int32 batch",
        "block_table": "int32 batch slots",
    },
    outputs={"topk_indices": "int32 batch topk"},
    reference="""import torch

def run(q_index_fp8, k_index_cache_fp8, weights, seq_lens, block_table):
    pages, page, _, width = k_index_cache_fp8.shape
    raw = k_index_cache_fp8.view(torch.uint8).reshape(pages, -1)
    keys = raw[:, : page * (width - 4)].contiguous().view(torch.float8_e4m3fn).float().reshape(pages, page, -1)
    keys = keys * raw[:, page * (width - 4):].contiguous().view(torch.float32).reshape(pages, page, 1)
    chosen = torch.full((len(seq_lens), 4), -1, dtype=torch.int32, device=weights.device)
    for i, length in enumerate(seq_lens.tolist()):
        table = block_table[i].long()
        tokens = (table[:, None] * page + torch.arange(page, device=table.device)).flatten()[:length]
        scores = (q_index_fp8[i].float() @ keys.flatten(0, 1)[tokens].T).relu() * weights[i][:, None]
        best = scores.sum(0).topk(min(4, length)).indices
        chosen[i, : len(best)] = tokens[best].int()
    return chosen
""",
)
SPARSE = definition(
    "dsa_sparse_attention_h2",
    "dsa_paged",
    {"heads": 2, "dim": 8, "topk": 4},
    inputs={"q": "float32 tokens heads dim", "cache": "float32 pages dim", "sparse_indices": "int32 tokens topk"},
    outputs={"output": "float32 tokens heads dim", "lse": "float32 tokens heads"},
    reference="""import torch

def run(q, cache, sparse_indices):
    keys = cache[sparse_indices.long() % len(cache)]
    logits = torch.einsum("thd,tkd->thk", q, keys)
    return torch.einsum("thk,tkd->thd", logits.softmax(-1), keys), logits.logsumexp(-1)
""",
)

RIGHT = {
    "gemm_n8_k16": "import torch\n\ndef run(A, B, C):\n    torch.matmul(A, B.T, out=C)\n",
    "rmsnorm_h32": "import torch\n\ndef run(x, weight, eps, y):\n    y.copy_(torch.nn.functional.rms_norm("
    "x.float(), (32,), weight.float(), eps))\n",
}


def solution(definition, name, source, *, returns=False, author="tests", **spec):
    """One file of Python; `returns` where it does not write its outputs."""
    said = {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run", "dependencies": []}
    said |= {"destination_passing_style": not returns, **spec}
    sources = [{"path": "main.py", "content": source}]
    return {"name": name, "definition": definition, "author": author, "spec": said, "sources": sources}


def workload(definition, uuid, axes, **inputs):
    made = {"axes": axes, "inputs": inputs, "uuid": uuid}
    return {"definition": definition, "workload": made, "solution": None, "evaluation": None}


class DataSet:
    """Written as the tests ask, in nested folders or flat ones."""

    def __init__(self, root, *, flat=False):
        self.root = Path(root)
        self.flat = flat
        (self.root / "definitions").mkdir(parents=True)

    def define(self, definition, *workloads):
        self._json("definitions", definition["op_type"], f"{definition['name']}.json", definition)
        lines = [json.dumps(one) for one in workloads]
        self._write("workloads", definition["op_type"], f"{definition['name']}.jsonl", "\n".join(lines) + "\n")
        return self

    def solve(self, *solutions):
        for one in solutions:
            self._json("solutions", one["author"], f"{one['name']}.json", one)
        return self

    def _json(self, kind, folder, name, content):
        self._write(kind, folder, name, json.dumps(content, indent=2))

    def _write(self, kind, folder, name, text):
        path = self.root / kind / ("" if self.flat else folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def traces(self, folder="traces"):
        files = sorted((self.root / folder).rglob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def statuses(self, folder="traces"):
        return {t["solution"]: t["evaluation"]["status"] for t in self.traces(folder)}
