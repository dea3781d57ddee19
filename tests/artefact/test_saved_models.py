"""`.rlopt` files: what runs after loading, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import torchrlopt
from tests.artefact.models import NAMES, OPTIONS, made, saved
from torchrlopt import _C
from torchrlopt.artefact import lowered, module
from torchrlopt.artefact.convention import Arguments
from torchrlopt.artefact.module import SavedModel
from torchrlopt.errors import ModelFormatError, OptionsError, UnsupportedError
from torchrlopt.torch_private.pytree import tree_leaves
from torchrlopt.torch_private.tensors import FakeTensorMode

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def load(path: Path) -> SavedModel:
    loaded = torchrlopt.load(path)
    assert isinstance(loaded, SavedModel)
    return loaded


def assert_equal(found: Any, expected: Any) -> None:
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        else:
            assert one == other


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def functions_of(loaded: SavedModel) -> list[str]:
    """Names of what a call runs."""
    steps = loaded._graphs[0]._graph._run._calls._steps
    return [getattr(each.function, "__name__", str(each.function)) for each in steps]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("saved")
    found = {name: folder / f"{name}.rlopt" for name in NAMES}
    for name, path in found.items():
        saved(*made(name), path)
    return found


@pytest.fixture(scope="module")
def convolutions(files: dict[str, Path]) -> SavedModel:
    return load(files["convolutions"])


@pytest.mark.parametrize("name", NAMES)
def test_the_loaded_model_is_the_live_one(name: str, tmp_path: Path) -> None:
    model, inputs = made(name)
    fast = saved(model, inputs, tmp_path / "fast.rlopt")
    loaded = load(tmp_path / "fast.rlopt")
    assert loaded.report["rebuilt"] == ""
    assert loaded.report["kept"] == "rewritten"
    with torch.no_grad():
        assert_equal(loaded(*inputs), fast(*inputs))
        assert type(loaded(*inputs)) is type(model(*inputs))
    assert not loaded(*inputs)[1 if name != "convolutions" else "image"].requires_grad
    names = functions_of(loaded)
    if name == "convolutions":
        assert "sequence" in names
        assert not {"convolution", "linear"} & {each for each in names if each.startswith("torch")}
    if name == "attention":
        # There is no such kernel for AVX2.
        assert ("attention" in names) == _C.kernel_takes_attention(16, 16, 16, 16, "float32")


def test_loading_imports_no_compiler(files: dict[str, Path], tmp_path: Path) -> None:
    model, inputs = made("convolutions")
    torch.save(inputs, tmp_path / "inputs.pt")
    torch.save(model(*inputs)["image"], tmp_path / "outputs.pt")
    code = (
        "import sys, torch; inputs, outputs = map(torch.load, sys.argv[2:]); import torchrlopt; "
        "found = torchrlopt.load(sys.argv[1])(*inputs)['image']; "
        "assert torch.allclose(found, outputs, rtol=1e-4, atol=1e-4); "
        "heavy = {'torch._dynamo', 'sympy', 'onnx', 'onnx_ir', 'torch._inductor', 'safetensors.numpy'}; "
        "print(sorted(heavy & set(sys.modules)), 'tests' in sys.modules)"
    )
    arguments = [
        str(each) for each in (files["convolutions"], tmp_path / "inputs.pt", tmp_path / "outputs.pt")
    ]
    assert subprocess.check_output([sys.executable, "-c", code, *arguments], text=True) == "[] False\n"


def test_weights_are_mapped_where_kernels_read_them(files: dict[str, Path]) -> None:
    (model, inputs), path = made("convolutions"), files["convolutions"]
    loaded = load(path)
    tensors = [x for x in loaded._graphs[0]._graph._run._calls._values if isinstance(x, torch.Tensor)]
    assert tensors
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
    ]
    for tensor in tensors:
        assert any(start <= tensor.data_ptr() < end for start, end in ranges)
    tensors[0].zero_()  # a private copy of a page: neither an error nor a change of the file
    with torch.no_grad():
        torch.testing.assert_close(load(path)(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_other_instructions_pack_anew(
    name: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = made(name)
    with monkeypatch.context() as elsewhere:
        here = module.stamp()
        elsewhere.setattr(module, "stamp", lambda: {**here, "instructions": "other"})
        fast = saved(model, inputs, tmp_path / "fast.rlopt")
    called = []
    real = lowered.rebuilt
    monkeypatch.setattr(lowered, "rebuilt", lambda *args: (called.append(1), real(*args))[1])
    loaded = load(tmp_path / "fast.rlopt")
    assert called == [1]
    assert "instructions 'other' on saving" in loaded.report["rebuilt"]
    with torch.no_grad():
        assert_equal(loaded(*inputs), fast(*inputs))
    assert functions_of(loaded) == functions_of(load(files[name]))


def test_operands_that_are_not_finite(tmp_path: Path) -> None:
    model, (x, image) = made("packed")
    saved(model, (x, image), tmp_path / "fast.rlopt")
    loaded = load(tmp_path / "fast.rlopt")
    x[0, 0], image[0, 0, 0, 0] = torch.nan, torch.inf
    with torch.no_grad():
        found, expected = loaded(x, image), model(x, image)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())
        torch.testing.assert_close(one.nan_to_num(0, 0, 0), other.nan_to_num(0, 0, 0), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        model.up.weight[0, 0] = torch.inf
    saved(model, (x, image), tmp_path / "infinite.rlopt")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "infinite.rlopt")(x, image)[0].isnan(), model(x, image)[0].isnan())


# ---- what a call takes and returns


@dataclasses.dataclass
class Answer(OrderedDict[str, Any]):
    """As `ModelOutput` of transformers: fields are attributes and items."""

    y: Any = None
    hidden: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Rich(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(
        self,
        pair: tuple[torch.Tensor, Any],
        *more: torch.Tensor,
        mask: torch.Tensor | None = None,
        scale: float = 2.0,
        mode: str = "sum",
        **rest: Any,
    ) -> Any:
        x, unused = pair
        y = torch.relu(self.linear(x)) * scale + rest["shift"]["by"] + (more[0] if more else 0)
        y = y if mask is None else y.masked_fill(mask, 0.0)
        return Answer(y=[y, y, (y.sum() if mode == "sum" else None, 3, "text")]), unused


def test_containers_constants_and_keywords(tmp_path: Path) -> None:
    model = Rich().eval()
    x, shift = torch.randn(3, 8), {"by": torch.ones(4), "name": None}
    call = {"pair": (x, torch.ones(2)), "mask": torch.rand(3, 4) > 0.5, "shift": shift}
    saved(model, call, tmp_path / "fast.rlopt")
    loaded = load(tmp_path / "fast.rlopt")
    with torch.no_grad():
        (found, same), (expected, _) = loaded(**call), model(**call)
        torch.testing.assert_close(found.y[:2], expected.y[:2])
        assert found.y[2][1:] == (3, "text")
    assert same is call["pair"][1]
    assert found["y"] is found.y is found[0]
    assert found.hidden is None
    assert list(found) == ["y"]
    with pytest.raises(AttributeError):
        found.nothing  # noqa: B018  # it raises
    assert_equal(loaded(call["pair"], mask=call["mask"], shift=shift, scale=2.0, mode="sum")[0].y, found.y)


class Pair(NamedTuple):
    count: torch.Tensor
    rest: list[torch.Tensor]


class Function(nn.Module):
    """A function of a linear and of what a call passes.

    Args:
        function: takes the module, the result of its linear, and the further arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear, self.bag = nn.Linear(8, 8), nn.EmbeddingBag(20, 8, mode="mean")

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        return self.function(self, self.linear(x), *more)


X = torch.tensor([[1.0, torch.inf, -torch.inf, torch.nan], [0.0, -0.0, 1e-40, 3.4e38]]).repeat(2, 2)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "nan_to_num": (lambda m, y, x: y.sin() + x.nan_to_num() + torch.nan_to_num(x, 1.0, 2.0, -3.0), (X,)),
    "bag of rows": (lambda m, y, ids: y + m.bag(ids), (torch.arange(20).view(4, 5),)),
    "bag of a list": (
        lambda m, y, ids, starts: y + m.bag(ids, starts),
        (torch.arange(19), torch.tensor([0, 3, 3, 7])),
    ),
    "topk": (lambda m, y: y.topk(3), ()),
    "a part of topk": (lambda m, y: y.gather(1, y.topk(2).indices), ()),
    "sort": (lambda m, y: {"sorted": y.sort(descending=True)}, ()),
    "max": (lambda m, y: (y.max(1), y.min(0)), ()),
    "median": (lambda m, y: [y.median(1), y.kthvalue(2), y.round().mode(1)], ()),
    "cummax": (lambda m, y: [y.cummax(1), y.cummin(0), y.aminmax(), y.logcumsumexp(1)], ()),
    "a named tuple": (lambda m, y: Pair(y, [y.relu()]), ()),
}


def test_functions_in_another_process(tmp_path: Path) -> None:
    """Results with names are tuples with the same names, unpacked, by position and as attributes."""
    expected = {}
    for name, (function, more) in FUNCTIONS.items():
        model, args = Function(function).eval(), (torch.randn(4, 8), *more)
        fast = saved(model, args, tmp_path / f"{name}.rlopt")
        with torch.no_grad():
            found = fast(*args)
            assert_close(found, model(*args))
        expected[name] = (args, tree_leaves(found))
    torch.save(expected, tmp_path / "expected.pt")
    code = (
        "import sys, torch, torchrlopt\nfrom pathlib import Path\n"
        "from torch.utils._pytree import tree_leaves\n"
        "folder = Path(sys.argv[1])\n"
        "for name, (args, expected) in torch.load(folder / 'expected.pt').items():\n"
        "    found = torchrlopt.load(folder / f'{name}.rlopt')(*args)\n"
        "    if name == 'topk':\n"
        "        values, indices = found\n"
        "        assert found.values is values is found[0] and found.indices is indices and len(found) == 2\n"
        "    if name == 'a named tuple':\n"
        "        assert found.count is found[0] and found.rest is found[1] and type(found.rest) is list\n"
        "    for one, other in zip(tree_leaves(found), expected, strict=True):\n"
        "        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)\n"
        "    print(name)\n"
    )
    printed = subprocess.check_output([sys.executable, "-c", code, str(tmp_path)], text=True)
    assert printed.split("\n") == [*FUNCTIONS, ""]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> tuple[SavedModel, dict[str, Any]]:
    call = {
        "pair": (torch.randn(3, 8), torch.ones(2)),
        "mask": torch.rand(3, 4) > 0.5,
        "shift": {"by": torch.ones(4), "name": None},
    }
    path = tmp_path_factory.mktemp("rich") / "fast.rlopt"
    saved(Rich().eval(), call, path)
    return load(path), call


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 3.0}, "where: scale; expected: 2.0; got: 3.0"),
        ({"scale": 2}, "where: scale; expected: 2.0; got: 2"),
        ({"mode": "mean"}, "where: mode"),
        ({"mask": None}, "where: mask; expected: a tensor; got: NoneType"),
        ({"pair": (torch.ones(4, 8), torch.ones(2))}, r"where: pair\[0\].*\[3, 8\].*\[4, 8\]"),
        ({"pair": (torch.ones(3, 8).double(), torch.ones(2))}, "torch.float32.*torch.float64"),
        ({"pair": [torch.ones(3, 8), torch.ones(2)]}, "expected: a tuple; got: list"),
        ({"shift": {"by": torch.ones(4)}}, "where: shift; expected: 2 parts; got: 1"),
        ({"shift": {"by": torch.ones(4), "other": None}}, "the key 'name'"),
        ({"other": 1}, "where: other; expected: no such argument"),
    ],
)
def test_calls_that_differ_are_refused(
    change: dict[str, Any], message: str, rich: tuple[SavedModel, dict[str, Any]]
) -> None:
    loaded, call = rich
    loaded(**call)
    with pytest.raises(UnsupportedError, match=message):
        loaded(**{**call, **change})


def test_positional_arguments(tmp_path: Path) -> None:
    model = Rich().eval()
    fast = torchrlopt.optimise(model, **OPTIONS)
    pair, more, shift = (torch.randn(3, 8), None), torch.randn(3, 4), {"by": torch.ones(4)}

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pair: Any, *more: torch.Tensor) -> Any:
            return self.model(pair, *more, shift=shift)[0].y

    saved(Whole().eval(), (pair, more), tmp_path / "fast.rlopt")
    loaded = load(tmp_path / "fast.rlopt")
    with torch.no_grad():
        torch.testing.assert_close(loaded(pair, more)[:2], fast(pair, more, shift=shift)[0].y[:2])
    for args in ((pair,), (pair, more, more), ()):
        with pytest.raises(UnsupportedError, match="the call differs"):
            loaded(*args)


def test_strides_of_arguments(convolutions: SavedModel) -> None:
    _, (x,) = made("convolutions")
    with torch.no_grad():
        expected = convolutions(x)
        assert_equal(convolutions(x.to(memory_format=torch.channels_last)), expected)
        assert_equal(convolutions(torch.stack([x, x])[1].flip(3).flip(3)), expected)


def test_several_sizes(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x,) = made("convolutions")
    sizes = [(2, 3, 16, 16), (1, 3, 24, 8)]
    saved(model, (x,), tmp_path / "fast.rlopt", other_inputs=[torch.randn(size) for size in sizes])
    loaded = load(tmp_path / "fast.rlopt")
    for size in (x.shape, *sizes):
        y = torch.randn(size)
        with torch.no_grad():
            torch.testing.assert_close(loaded(y), model(y), rtol=1e-4, atol=1e-4)
    with pytest.raises(UnsupportedError, match=r"other_inputs") as raised:
        loaded(torch.randn(3, 3, 16, 16))
    assert all(str(list(size)) in str(raised.value) for size in (x.shape, *sizes))
    tried: list[Any] = []
    real = Arguments.match
    monkeypatch.setattr(Arguments, "match", lambda *args: (tried.append(args[0]), real(*args))[1])
    for size in sizes:
        loaded(torch.randn(size))
    assert tried == [graph.arguments for graph in loaded._graphs[1:]]  # the others are not asked again
    one, three = (path.stat().st_size for path in (files["convolutions"], tmp_path / "fast.rlopt"))
    assert three < 2 * one, "weights are stored once"


def test_gradients_and_autocast_are_refused(convolutions: SavedModel) -> None:
    _, (x,) = made("convolutions")
    x.requires_grad_()
    with pytest.raises(UnsupportedError, match="records no gradients"):
        convolutions(x)
    with torch.no_grad():
        convolutions(x)
        with torch.autocast("cpu"), pytest.raises(UnsupportedError, match="autocast"):
            convolutions(x)


class Around(nn.Module):
    """What calls a loaded model."""

    def __init__(self, part: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.part, self.function = part, function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.part, x)


def _with_tangent(loaded: SavedModel, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return loaded(forward_ad.make_dual(x, x))


class Seeing(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def _seen(loaded: SavedModel, x: torch.Tensor) -> Any:
    with Seeing():
        return loaded(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, x: torch.jit.trace(f, x, check_trace=False, strict=False), "traced"),
        (lambda f, x: torch.fx.symbolic_trace(f), "traced"),
        (lambda f, x: make_fx(f)(x), "traced"),
        (lambda f, x: make_fx(f, pre_dispatch=True)(x), "traced"),
        (lambda f, x: torch.export.export(f, (x,), strict=False), "traced"),
        (_seen, "traced, nor seen by dispatch modes"),
        (_with_tangent, "forward-mode"),
        (lambda f, x: torch.func.jvp(f, (x,), (x,)), "transform"),
        (lambda f, x: torch.vmap(f)(x[None]), "transform"),
        (lambda f, x: f(FakeTensorMode().from_tensor(x)), "a tensor that holds its numbers; got: FakeTensor"),
    ],
)
def test_who_sees_no_kernels_is_refused(
    call: Callable[[Any, torch.Tensor], Any], message: str, convolutions: SavedModel
) -> None:
    _, (x,) = made("convolutions")
    with pytest.raises(UnsupportedError, match=message):
        call(Around(convolutions, lambda part, x: part(x)), x)


def test_a_loaded_model_within_a_compiled_one(convolutions: SavedModel) -> None:
    model, (x,) = made("convolutions")

    def surrounded(part: SavedModel, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(part(x + 1)["image"] - 1)

    seen: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in gm.graph.nodes if node.op.startswith("call"))
        return gm.forward

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        found = torch.compile(Around(convolutions, surrounded), backend=backend)(x)
        torch.testing.assert_close(found, surrounded(model, x), rtol=1e-4, atol=1e-4)
    assert len(seen) == 3  # what surrounds the loaded model


def test_copies_and_pickles(convolutions: SavedModel) -> None:
    _, (x,) = made("convolutions")
    with torch.no_grad():
        expected = convolutions(x)
        for copied in (copy.copy(convolutions), copy.deepcopy(nn.Sequential(convolutions))):
            assert_equal(copied(x), expected)
    deep = copy.deepcopy(convolutions)
    assert deep._graphs[0] is convolutions._graphs[0]
    assert deep.report == convolutions.report
    assert deep.report is not convolutions.report
    with pytest.raises(UnsupportedError, match="pass on the path"):
        pickle.dumps(convolutions)


# ---- what is not saved


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return torch.relu(self.linear(x)) + self.count


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        torch._dynamo.graph_break()
        return self.linear(y)


class Remembering(Broken):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x)


class Weighty(Broken):
    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x), self.linear.weight


class Odd(Broken):
    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x), {1, 2}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Counting, "it writes to its own state"),
        (Broken, "Dynamo ended the graph"),
        (Remembering, "it sets attributes"),
        (Weighty, "such as a weight"),
        (Odd, "a saved model returns tensors"),
    ],
)
def test_what_cannot_be_saved_says_why(kind: type[nn.Module], message: str, tmp_path: Path) -> None:
    model, x = kind().eval(), torch.randn(4, 8)
    fast = torchrlopt.optimise(model, (x,), **OPTIONS)
    before = {name: held.clone() for name, held in model.state_dict().items()}
    with pytest.raises(UnsupportedError, match=message):
        torchrlopt.save(fast, tmp_path / "fast.rlopt")
    assert not list(tmp_path.iterdir())
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_formats(tmp_path: Path) -> None:
    model, inputs = made("convolutions")
    fast = saved(model, inputs, tmp_path / "a.model", format="rlopt")
    assert_equal(torchrlopt.load(tmp_path / "a.model", format="rlopt")(*inputs), fast(*inputs))
    torchrlopt.save(fast, tmp_path / "fast.pt2")
    (tmp_path / "fast.pt2").rename(tmp_path / "export.rlopt")
    with pytest.raises(ModelFormatError, match="cannot be read"):  # not by torch.export.load
        torchrlopt.load(tmp_path / "export.rlopt")
    with pytest.raises(ModelFormatError):
        torchrlopt.load(tmp_path / "missing.rlopt")
    with pytest.raises(OptionsError, match="'rlopt' or 'pt2'"):
        torchrlopt.save(fast, tmp_path / "fast", format="onnx")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="other_inputs"):
        torchrlopt.save(fast, tmp_path / "fast.rlopt", dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
    with pytest.raises(UnsupportedError, match="has one graph"):
        torchrlopt.save(fast, tmp_path / "fast.pt2", other_inputs=[inputs])


def test_a_runtime_is_replaced_by_eager_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = made("convolutions")
    fast = torchrlopt.optimise(model, inputs, **OPTIONS)
    runner = fast._torchrlopt_runner
    runner.reports = [dataclasses.replace(each, executor="openvino") for each in runner.reports]
    runner.options = dataclasses.replace(runner.options, executor="default")
    report = torchrlopt.save(fast, tmp_path / "fast.rlopt")
    assert report.executor == "eager"
    assert any("runs in openvino, the saved one in eager PyTorch" in note for note in report.notes)
    with torch.no_grad():
        torch.testing.assert_close(
            load(tmp_path / "fast.rlopt")(*inputs), model(*inputs), rtol=1e-4, atol=1e-4
        )
