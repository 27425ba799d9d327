"""Small FlashInfer-Bench data sets: definitions, workloads, and solutions of every sort."""

import json
from pathlib import Path

GEMM = {
    "name": "gemm_n8_k16",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 8}, "K": {"type": "const", "value": 16}},
    "inputs": {"A": {"shape": ["M", "K"], "dtype": "float32"}, "B": {"shape": ["N", "K"], "dtype": "float32"}},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(A, B):\n    return A @ B.T\n",
}
RMSNORM = {
    "name": "rmsnorm_h32",
    "op_type": "rmsnorm",
    "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 32}},
    "inputs": {
        "x": {"shape": ["batch", "hidden"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden"], "dtype": "bfloat16"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["batch", "hidden"], "dtype": "bfloat16"}},
    "reference": (
        "import torch\n\ndef run(x, weight, eps):\n    wide = x.float()\n"
        "    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(x.dtype)\n"
    ),
}
DECODE = {
    "name": "gqa_paged_decode_h4_kv2_d8_ps1",
    "op_type": "gqa_paged",
    "axes": {
        "batch": {"type": "var"},
        "pages": {"type": "var"},
        "indptr": {"type": "var"},
        "tokens": {"type": "var"},
        "heads": {"type": "const", "value": 4},
        "kv_heads": {"type": "const", "value": 2},
        "dim": {"type": "const", "value": 8},
    },
    "inputs": {
        "q": {"shape": ["batch", "heads", "dim"], "dtype": "float32"},
        "k": {"shape": ["pages", "kv_heads", "dim"], "dtype": "float32"},
        "v": {"shape": ["pages", "kv_heads", "dim"], "dtype": "float32"},
        "kv_indptr": {"shape": ["indptr"], "dtype": "int32"},
        "kv_indices": {"shape": ["tokens"], "dtype": "int32"},
        "sm_scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "output": {"shape": ["batch", "heads", "dim"], "dtype": "float32"},
        "lse": {"shape": ["batch", "heads"], "dtype": "float32"},
    },
    "reference": """import math
import torch

def run(q, k, v, kv_indptr, kv_indices, sm_scale):
    output, lse = torch.zeros_like(q), torch.full(q.shape[:2], -math.inf, device=q.device)
    for i, (start, end) in enumerate(zip(kv_indptr[:-1], kv_indptr[1:])):
        pages = kv_indices[start:end].long()
        if len(pages):
            keys, values = (t[pages].repeat_interleave(2, 1) for t in (k, v))
            logits = torch.einsum("hd,nhd->hn", q[i], keys) * sm_scale
            output[i] = torch.einsum("hn,nhd->hd", logits.softmax(-1), values)
            lse[i] = logits.logsumexp(-1) / math.log(2)
    return output, lse
""",
}
SAMPLING = {
    "name": "top_k_sampling_v16",
    "op_type": "sampling",
    "axes": {"batch": {"type": "var"}, "vocab": {"type": "const", "value": 16}},
    "inputs": {
        "probs": {"shape": ["batch", "vocab"], "dtype": "float32"},
        "top_k": {"shape": ["batch"], "dtype": "int32"},
    },
    "outputs": {"samples": {"shape": ["batch"], "dtype": "int64"}},
    "reference": """import torch

def run(probs, top_k):
    order = probs.sort(-1, descending=True).values
    limit = order.gather(-1, top_k.long()[:, None] - 1)
    kept = torch.where(probs >= limit, probs, 0.0)
    return kept.multinomial(1)[:, 0]
""",
}
LOWBIT = {**GEMM, "name": "lowbit_gemm", "op_type": "lowbit"}
INDEXER = {
    "name": "dsa_topk_indexer_h2_d8_topk4_ps2",
    "op_type": "dsa_paged",
    "axes": {
        "batch": {"type": "var"},
        "pages": {"type": "var"},
        "slots": {"type": "var"},
        "heads": {"type": "const", "value": 2},
        "dim": {"type": "const", "value": 8},
        "page_size": {"type": "const", "value": 2},
        "one": {"type": "const", "value": 1},
        "packed": {"type": "const", "value": 12},
        "topk": {"type": "const", "value": 4},
    },
    "inputs": {
        "q_index_fp8": {"shape": ["batch", "heads", "dim"], "dtype": "float8_e4m3fn"},
        "k_index_cache_fp8": {"shape": ["pages", "page_size", "one", "packed"], "dtype": "int8"},
        "weights": {"shape": ["batch", "heads"], "dtype": "float32"},
        "seq_lens": {"shape": ["batch"], "dtype": "int32"},
        "block_table": {"shape": ["batch", "slots"], "dtype": "int32"},
    },
    "outputs": {"topk_indices": {"shape": ["batch", "topk"], "dtype": "int32"}},
    "reference": """import torch

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
}
SPARSE = {
    "name": "dsa_sparse_attention_h2",
    "op_type": "dsa_paged",
    "axes": {
        "tokens": {"type": "var"},
        "pages": {"type": "var"},
        "heads": {"type": "const", "value": 2},
        "dim": {"type": "const", "value": 8},
        "topk": {"type": "const", "value": 4},
    },
    "inputs": {
        "q": {"shape": ["tokens", "heads", "dim"], "dtype": "float32"},
        "cache": {"shape": ["pages", "dim"], "dtype": "float32"},
        "sparse_indices": {"shape": ["tokens", "topk"], "dtype": "int32"},
    },
    "outputs": {
        "output": {"shape": ["tokens", "heads", "dim"], "dtype": "float32"},
        "lse": {"shape": ["tokens", "heads"], "dtype": "float32"},
    },
    "reference": """import torch

def run(q, cache, sparse_indices):
    keys = cache[sparse_indices.long() % len(cache)]
    logits = torch.einsum("thd,tkd->thk", q, keys)
    return torch.einsum("thk,tkd->thd", logits.softmax(-1), keys), logits.logsumexp(-1)
""",
}

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
