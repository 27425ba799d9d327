"""The declarations of a routine file: Routine, Backend, LaunchOptions, Built, Shape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.capability import Requirement
from pytest_flashinfer_perf.rows.row import Bound
from pytest_flashinfer_perf.rows.run_file import Roof
from pytest_flashinfer_perf.spec.params import Params
from pytest_flashinfer_perf.spec.presets import Model, Presets, Spread

if TYPE_CHECKING:
    import torch

    from pytest_flashinfer_perf.checking.check import Rows, Tolerance
    from pytest_flashinfer_perf.machine.devices import Device
P = TypeVar("P", bound=Params)
X = TypeVar("X")
P_contra = TypeVar("P_contra", contravariant=True)
X_contra = TypeVar("X_contra", contravariant=True)


class Reference(Protocol[P_contra, X_contra]):
    """The answer in fp32, independent of every backend; for the given rows only, if the routine has `rows`."""

    def __call__(
        self, params: P_contra, inputs: X_contra, rows: torch.Tensor | None = None, /
    ) -> tuple[torch.Tensor, ...]: ...


class CannotRunError(FlashinferPerfError):
    """Hardware, the library or memory does not allow this case here: a skip, with its reason."""


@dataclass(frozen=True)
class LaunchOptions:
    """The backend's name, and whether its calls will be captured in CUDA graphs."""

    backend: str
    cuda_graph: bool


@dataclass(frozen=True)
class Built(Generic[X]):
    """A call that is ready to be timed: it takes the inputs, so that each timed call can have cold ones.

    `takes` are the inputs as this backend expects them, if that is not how they were drawn. `plan` repeats what every
    new batch needs before it is launched, if it needs anything.
    """

    launch: Callable[[X], object]
    resolved: str
    takes: X | None = None
    plan: Callable[[], object] | None = None


@dataclass(frozen=True)
class Shape(Generic[P]):
    """Params as a tier lists them, with the model they come from, and their backends if not all."""

    params: P
    model: Model | None = None
    backends: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        if self.model is None:
            return self.params.slug()
        return f"{self.model.name}-{self.params.slug(self.model.parameters)}"


Build = Callable[[P, X, LaunchOptions], Built[X]]
Shapes = Callable[[], Iterable[Shape[P]]]
ShapesOfModel = Callable[[Model], Iterable[Shape[P]]]


def _no_limits(_params: Any, _backend: str, _device: Device) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True)
class Backend(Generic[P, X]):
    """One way to run a routine, the FlashInfer API that it calls, and its requirements.

    `modules` are FlashInfer's functions that declare the modules to compile, where no call can be made to find them:
    `jit.comm.gen_trtllm_comm_module`.
    """

    name: str
    build: Build[P, X]
    api: str = ""
    requires: tuple[Requirement, ...] = ()
    limits: Callable[[P, str, Device], Iterable[str]] = _no_limits
    tunes: bool = False
    runs_as: str = ""
    modules: tuple[str, ...] = ()


@dataclass
class Routine(Generic[P, X]):
    """An operation under its FlashInfer name, declared in a file of its own.

    The check negates `activations` in place, and verifies that the answer follows.
    """

    name: str
    family: str
    params: type[P]
    inputs: Callable[[P, torch.Generator, torch.device], X]
    outputs: Callable[[X], tuple[torch.Tensor, ...]]
    reference: Reference[P, X]
    cost: Callable[[P, X], Cost]
    tolerances: Callable[[P, str], tuple[Tolerance, ...]]
    footprint: Callable[[P], int]
    cuda_graph: bool
    decoded: Callable[[P, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]] | None = None
    facts: Callable[[P, X], Mapping[str, Any]] | None = None
    rows: Callable[[P, X], Rows] | None = None
    activations: Callable[[X], torch.Tensor] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    backends: dict[str, Backend[P, X]] = field(default_factory=dict)
    tiers: dict[str, Shapes[P]] = field(default_factory=dict)
    presets: Presets[Any] | None = None
    model_shapes: ShapesOfModel[P] | None = None

    named_by: ClassVar[tuple[str, ...]] = ("--routine", "-R")  # flags that name it in a line; the first is written
    tunes_by_flag: ClassVar[bool] = False  # --autotune is understood in each of its lines, and is none of its params
    graph_if_possible: ClassVar[bool] = False  # a call that no graph can hold is timed without one

    @property
    def mark(self) -> str:
        """The marker by which `-m` selects the cases of its whole family."""
        return self.family

    def read(self, params: P, _inputs: X, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The outputs in the form that the reference's answer has."""
        return self.decoded(params, outputs) if self.decoded else outputs

    def allowed(self, params: P, _inputs: X, backend: str) -> tuple[Tolerance, ...]:
        return self.tolerances(params, backend)

    def described(self, params: P, inputs: X, _bounds: tuple[Tolerance, ...]) -> Mapping[str, Any]:
        """More fields of the row; `bounds` are the tolerances that the answer was compared by."""
        return self.facts(params, inputs) if self.facts else {}

    def changed(self, _inputs: X) -> tuple[torch.Tensor, ...]:
        """Tensors that a call both reads and writes: they are restored between timed calls."""
        return ()

    def backend(
        self,
        *names: str,
        api: str = "",
        runs_as: str = "",
        limits: Callable[[P, str, Device], Iterable[str]] = _no_limits,
        tunes: bool = False,
        modules: tuple[str, ...] = (),
    ) -> Callable[[Build[P, X]], Build[P, X]]:
        """Declare one or more backends that the decorated function builds, by calling this FlashInfer API.

        `runs_as` is the backend's name in `machine/capability.py`, if the routine uses another one. A backend that
        `tunes` asks FlashInfer's autotuner for its kernel.
        """

        def declare(build: Build[P, X]) -> Build[P, X]:
            for name in names:
                implementation = runs_as or name
                requires = capability.backend(implementation, api) if api else ()
                self.backends[name] = Backend(name, build, api, requires, limits, tunes, implementation, modules)
            return build

        return declare

    def tier(self, name: str) -> Callable[[Shapes[P]], Shapes[P]]:
        """Declare the shapes of a tier; the decorated function makes them when they are asked for."""

        def declare(shapes: Shapes[P]) -> Shapes[P]:
            self.tiers[name] = shapes
            return shapes

        return declare

    def sweep(self, presets: Presets[Any]) -> Callable[[ShapesOfModel[P]], ShapesOfModel[P]]:
        """Declare the shapes of a model that has such a layer; the tier `full` is those of all models."""

        def declare(shapes: ShapesOfModel[P]) -> ShapesOfModel[P]:
            self.presets, self.model_shapes = presets, shapes
            self.tiers["full"] = lambda: (shape for model in presets.everywhere() for shape in shapes(model))
            return shapes

        return declare

    def shapes_of_model(self, name: str, over: Spread) -> Iterable[Shape[P]]:
        """The shapes of a model on one GPU; none if it has no such layer."""
        if self.presets is None or self.model_shapes is None or name not in self.presets.layers:
            return ()
        return self.model_shapes(self.presets(name, *over))

    def keywords(self, backend: str) -> set[str]:
        """The names that select a case of this backend by `-k`: earlier ones too, its kernels' and its API's."""
        declared = self.backends[backend]
        earlier = {name for name, now in self.aliases.items() if now == backend}
        function = declared.api.rpartition(".")[2]
        return {self.name, self.family, backend, declared.runs_as, function, *earlier} - {""}

    def backend_named(self, name: str) -> Backend[P, X] | None:
        return self.backends.get(self.aliases.get(name, name))


AnyRoutine = Routine[Any, Any]


def naming_flags() -> list[tuple[str, ...]]:
    """The flags that name a routine, those of routines that extensions make among them."""
    kinds: list[type[AnyRoutine]] = [Routine, *Routine.__subclasses__()]
    return sorted({kind.named_by for kind in kinds})


# Cost: the minimal work of a call, and the share of the device's roof that its time reaches.


@dataclass(frozen=True)
class Cost:
    """Floating-point operations in `dtype`, and bytes that must cross the device's memory once.

    `inferred` if the dtype was not stated and is taken from the inputs.
    """

    flops: float
    bytes: float
    dtype: str
    inferred: bool = False


@dataclass(frozen=True)
class Peaks(Roof):
    """The peak rates of a device."""

    def covers(self, cost: Cost) -> bool:
        return not cost.flops or cost.dtype in self.flops_per_s


@dataclass(frozen=True)
class Roofline:
    """The share of the roof that a time reaches, and whether compute or memory is the bound."""

    sol_pct: float
    bound: Bound


def roofline(cost: Cost, seconds: float, peaks: Peaks | None) -> Roofline | None:
    """The share of the roof; of the memory roof alone if no peak is known for the dtype, None without bytes as well."""
    if peaks is None or not (cost.bytes or (cost.flops and peaks.covers(cost))):
        return None
    memory = cost.bytes / peaks.bytes_per_s
    if not peaks.covers(cost):
        return Roofline(100.0 * memory / seconds, "memory?")
    compute = cost.flops / peaks.flops_per_s[cost.dtype] if cost.flops else 0.0
    return Roofline(100.0 * max(compute, memory) / seconds, "compute" if compute > memory else "memory")


def as_run(cost: Cost, seconds: float, limit: Peaks | None) -> Cost:
    """The cost with the dtype tf32 if fp32 inputs were multiplied faster than fp32 allows."""
    rates = limit.flops_per_s if limit else {}
    if not (cost.inferred and cost.dtype == "float32" and {"float32", "tf32"} <= rates.keys()):
        return cost
    return replace(cost, dtype="tf32") if cost.flops > rates["float32"] * seconds else cost


def first_that_covers(cost: Cost, preferred: Sequence[Peaks]) -> Peaks | None:
    """The first roof that has the peak of this dtype, or else the first one."""
    return next((peaks for peaks in preferred if peaks.covers(cost)), preferred[0] if preferred else None)


def best_of(roofs: Collection[Peaks]) -> Peaks | None:
    """The roof that no result can exceed: for each rate the larger one of measurement and datasheet."""
    if not roofs:
        return None
    dtypes = {dtype for p in roofs for dtype in p.flops_per_s}
    flops = {d: max(p.flops_per_s.get(d, 0.0) for p in roofs) for d in dtypes}
    return Peaks(max(p.bytes_per_s for p in roofs), flops, "larger")
