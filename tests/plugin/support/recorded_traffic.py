"""A recording by hand: a small engine's calls, whose cases the `torch` backend runs on a CPU, with known weights."""

from pytest_flashinfer_perf.extensions.traffic import recording
from pytest_flashinfer_perf.extensions.traffic.recording import Head, RecordedCall, Recording, WrapperState


def tensor(*shape, dtype="bfloat16"):
    return {"tensor": list(shape), "dtype": dtype}


def integers(size):
    return tensor(size, dtype="int32")


CACHE = tensor(64, 2, 4, 2, 32)  # pages, keys and values, tokens of a page, heads, width
HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "page_size": 4}


def pages(lengths, page=4):
    """The two samples by which a paged cache's lengths are recorded."""
    return {"lengths": [-(-one // page) for one in lengths]}, {"values": [(one - 1) % page + 1 for one in lengths]}


def decode(*samples, count, **more):
    """Decoding steps of as many requests as each of the samples has lengths."""
    batch = len(samples[0])
    held = [dict(zip(("indptr", "last_page_len"), pages(lengths), strict=True)) for lengths in samples]
    plan = {**HEADS, "head_dim": 32, "indptr": integers(batch + 1), "last_page_len": integers(batch)}
    return RecordedCall(
        api="flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run",
        arguments={"q": tensor(batch, 4, 32), "paged_kv_cache": CACHE, **more},
        wrapper=WrapperState(init={"use_tensor_cores": True}, plan=plan),
        backend="fa2",
        count=count,
        samples=tuple(held),
    )


def prefill(q, kv, count):
    names = ("paged_kv_indptr", "paged_kv_last_page_len")
    held = {"qo_indptr": {"lengths": q}, **dict(zip(names, pages(kv), strict=True))}
    plan = {**HEADS, "head_dim_qk": 32, "causal": True, **{name: integers(len(q)) for name in held}}
    return RecordedCall(
        api="flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper.run",
        arguments={"q": tensor(sum(q), 4, 32), "paged_kv_cache": CACHE},
        wrapper=WrapperState(init={"backend": "fa2"}, plan=plan),
        backend="fa2",
        count=count,
        samples=(held,),
    )


def product(m, n=64, k=64, *, count):
    return RecordedCall(
        api="flashinfer.gemm.gemm_base.mm_bf16", arguments={"a": tensor(m, k), "b": tensor(k, n)}, count=count
    )


def unknown(count):
    return RecordedCall(api="flashinfer.made_up.fused_everything", arguments={"x": tensor(8, 8)}, count=count)


CALLS = (
    decode([9, 17, 33], [9, 17, 34], [300, 200, 100], count=300),
    prefill([16, 5], [16, 40], 40),
    product(64, count=200),
    product(4, count=60),
    unknown(400),
)


def recorded(calls=CALLS, seconds=2.0):
    head = Head(traffic=1, flashinfer="0.7.2", seconds=seconds, processes=1, calls=sum(call.count for call in calls))
    return Recording(head, tuple(calls))


def written(path, calls=CALLS):
    recording.write(path, recorded(calls))
    return path
