#!/usr/bin/env python3
"""torch.ops.halftone: opcheck of every op, linear layers of every recipe against the definition, torch.compile, errors.

    HALFTONE_DEVICE=cuda python3 tests/parity/torch_ops.py     on a GPU
"""
import copy
import logging
import os
import subprocess
import sys
import tempfile

import _torch_ops

cache = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
torch, halftone = _torch_ops.load()
sqnr = _torch_ops.sqnr
device = os.environ.get("HALFTONE_DEVICE", "cpu")
ops = torch.ops.halftone
checked = set()
failures = []
torch.manual_seed(0)

RECIPES = ("none", "fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp", "fp8_blockwise", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4", "amdfp4",
           "mxint8", "nvint4", "int8", "int4", "int8_weight", "int4_weight", "bitnet")


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape).to(device, dtype).requires_grad_(grad)


def opcheck(name, /, *args, **kwargs):
    op = getattr(ops, name).default
    try:
        torch.library.opcheck(op, args, kwargs)
    except Exception as error:
        words = [argument for argument in args if isinstance(argument, str)]
        failures.append(f"opcheck of {name} {words} {kwargs}: {str(error)[-600:]}")
    checked.add(name)


def report():
    """Raises what was collected in `failures`."""
    found, failures[:] = list(failures), []
    assert not found, f"{len(found)} failures\n" + "\n".join(found)


def check_schemas():
    x = randn(64, 128, dtype=torch.bfloat16)
    for format in ("e4m3", "e5m2:1x128", "e4m3:row:pow2", "e4m3:128x128", "mxfp8_e4m3:floor", "mxfp6_e2m3:even", "mxfp4:packed", "mxfp4:32x32:uos",
                   "mxfp4:two_level=blockwise", "mxfp4:32x32:two_level=blockwise", "nvfp4:sr", "nvfp4:16x16:chain=torchao", "amdfp4", "int8:sr",
                   "nvfp4:choice=squared:sr", "amdfp4:16x16:choice=largest", "mxint8", "mxint8:32x32:floor", "nvint4:packed",
                   "int4:packed", "uint4", "ternary"):
        opcheck("quantize", x, format)
        opcheck("quantize", x[:50].float(), format.replace(":packed", ""), transposed=True, stream="w#w.dgrad", seed=3, step=2, first_row=7)
        q = halftone.quantize(x, format)
        opcheck("dequantize", q.tensors, q.format, dtype=torch.bfloat16)
        opcheck("fake_quantize", x.detach().clone().requires_grad_(), format.replace(":packed", ""))
        if device == "cpu" or not format.startswith(("mxfp6", "uint4")):
            opcheck("scaled_mm", q.tensors, q.format, q.tensors, q.format, bias=randn(64), out_dtype=torch.float32)
    opcheck("quantize", x[:50], "mxfp4:hadamard=32", transposed=True)
    for format in ("mxfp4:hadamard=32", "nvfp4:hadamard=64:signs=deterministic", "nvfp4:hadamard=128:eden"):
        opcheck("quantize", x[:50], format, stream="w#dy.dgrad", seed=3, step=2)
        rows, columns = halftone.quantize(x, format), halftone.quantize(x.t().contiguous(), format, transposed=True)
        assert torch.equal(rows.codes, columns.codes), format
    step = torch.tensor(2)
    for recipe in RECIPES:
        for dtype in (torch.float32, torch.bfloat16):
            tensors = [randn(*shape, dtype=dtype, grad=True) for shape in ((2, 24, 64), (32, 64), (32,))]
            opcheck("linear", *tensors, recipe, name="w", seed=3, step=step)
            opcheck("linear", tensors[0].detach(), tensors[1], None, recipe)
            opcheck("linear_backward", randn(2, 24, 32, dtype=dtype), *[t.detach() for t in tensors], recipe, "", "w", 3, step, 5, [True, True, True])
    opcheck("linear_backward", randn(24, 32), randn(24, 64), randn(32, 64), None, "int8", "", "w", 0, None, 0, [False, True, False])
    opcheck("rms_norm", randn(2, 6, 64, grad=True), randn(64, grad=True), 1e-5)
    opcheck("rms_norm_backward", randn(2, 6, 64), randn(2, 6, 64), randn(64), 1e-5)
    opcheck("swiglu", randn(2, 6, 64, grad=True))
    opcheck("swiglu_backward", randn(2, 6, 32), randn(2, 6, 64))
    labels = torch.randint(0, 32, (24,), device=device)
    labels[3] = -100
    opcheck("linear_cross_entropy", randn(24, 64, grad=True), randn(32, 64, grad=True), labels, "int8")
    opcheck("linear_cross_entropy_backward", randn(24, 64, dtype=torch.bfloat16), torch.tensor(0.5, device=device))
    opcheck("linear_cross_entropy_with_gradients", randn(24, 64), randn(32, 64), labels, "none", "", "output.weight", 0, None, 0, [False, True])
    known = {schema.name.split("::")[1] for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("halftone::")}
    unchecked = known - checked - {"recipe_formats", "canonical_format"}  # these two only take strings
    assert not unchecked, f"ops without an opcheck: {sorted(unchecked)}"
    report()
    print(f"opcheck passes for {len(checked)} ops: {', '.join(sorted(checked))}")


def operands(recipe, options, x, w, dy, seed, step, first_row):
    """The six operands of docs/spec/numerics.md section 7 as float64 numbers, from the quantiser alone."""
    formats = halftone.recipe_formats(recipe, options)

    def number(which, matrix, role, transposed, row):
        format = formats[which]
        if format == "hp":
            return matrix.double()
        q = halftone.quantize(matrix, format, transposed=transposed, stream=f"w#{role}", seed=seed, step=step, first_row=row)
        values = halftone.dequantize(q).double()
        return values.t() if transposed else values

    stored = recipe in ("int8_weight", "int4_weight")
    o = {"x_forward": number("x_forward", x, "x.fwd", False, first_row), "w_forward": number("w_forward", w, "w.fwd", False, 0),
         "dy_dgrad": number("dy_dgrad", dy, "dy.dgrad", False, first_row)}
    # Tensor and tile scales are the same in both directions: one set of codes, one draw.
    same = {which: formats[which].split(":")[1:2] in (["tensor"], ["32x32"], ["16x16"], ["128x128"]) for which in halftone.OPERANDS}
    o["w_dgrad"] = o["w_forward"] if stored or (same["w_dgrad"] and same["w_forward"]) else number("w_dgrad", w, "w.dgrad", True, 0)
    o["dy_wgrad"] = o["dy_dgrad"] if same["dy_wgrad"] else number("dy_wgrad", dy, "dy.wgrad", True, first_row)
    o["x_wgrad"] = o["x_forward"] if same["x_wgrad"] or recipe == "bitnet" else number("x_wgrad", x, "x.wgrad", True, first_row)
    return o


def check_linears():
    """Y, dX and dW against float64 products of the dequantised operands; bars of docs/spec/numerics.md 13.1."""
    worst = {}
    draws = {"seed": 11, "step": 5}
    cases = [(recipe, "") for recipe in RECIPES]
    cases += [("mxfp4", "use_2dblock_w=false,use_hadamard=false"), ("mxfp4", "use_2dblock_x=true,use_hadamard=false"), ("nvfp4", "style=torchao"),
              ("mxfp4", "two_level_scaling=blockwise"), ("mxfp4", "clip_mode=static"), ("mxfp8_e4m3", "scale_mode=floor,wgrad_hp=true"),
              ("int8", "stochastic_rounding=true"), ("int4", "use_sr_grad=true"), ("int8", "grad_weight=false"),
              ("fp8_rowwise", "fast_accum=,round_scales_to_power_of_2=false"), ("mxfp4", "emulate=true")]
    for recipe, options in cases:
        m, k, n, first_row = 96, 160 if recipe != "fp8_blockwise" else 288, 64, 17
        x, w, b, dy = randn(m, k, grad=True), randn(n, k, grad=True), randn(n, grad=True), randn(m, n)
        y = halftone.linear(x, w, b, recipe, options, name="w", first_row=first_row, **draws)
        y.backward(dy)
        o = operands(recipe, options, x.detach(), w.detach(), dy, **draws, first_row=first_row)
        db = min(sqnr(o["x_forward"] @ o["w_forward"].t() + b.double(), y), sqnr(o["dy_dgrad"] @ o["w_dgrad"], x.grad),
                 sqnr(o["dy_wgrad"].t() @ o["x_wgrad"], w.grad), sqnr(dy.double().sum(0), b.grad))
        # fp8 tensor cores sum in fewer bits, with fast accumulation in fewer still.
        fp8 = device != "cpu" and (recipe.startswith(("fp8", "mxfp4")) and "emulate" not in options)
        bar = 90 if not fp8 else 40 if recipe in ("fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp") else 50
        if not db >= bar:
            failures.append(f"{recipe} {options}: {db:.1f} dB against the products of the dequantised operands, at least {bar} expected")
        worst[f"{recipe} {options}".strip()] = db
        # Again, and without a graph.
        again = halftone.linear(x, w, b, recipe, options, name="w", first_row=first_row, **draws)
        with torch.no_grad():
            plain = halftone.linear(x.view(4, -1, k), w, b, recipe, options, name="w", first_row=first_row, **draws).view(m, n)
        if device == "cpu":  # on a GPU the algorithm may differ because its choice is timed
            assert torch.equal(y, again) and torch.equal(y, plain), f"{recipe}: two calls differ"
        else:
            assert min(sqnr(y, again), sqnr(y, plain)) > bar, f"{recipe}: two calls differ"
    other = halftone.linear(x, w, b, "int8", "stochastic_rounding=true", name="w", seed=11, step=6)
    assert not torch.equal(other, halftone.linear(x, w, b, "int8", "stochastic_rounding=true", name="w", seed=11, step=torch.tensor(7)))
    report()
    print(f"linear equals the products of its dequantised operands in {len(cases)} recipes, worst {min(worst.values()):.1f} dB "
          f"({min(worst, key=worst.get)})")


def check_fused():
    for dtype in (torch.float32, torch.bfloat16):
        x, w = randn(24, 64, dtype=dtype, grad=True), randn(64, dtype=dtype, grad=True)
        gu, head, labels = randn(24, 64, dtype=dtype, grad=True), randn(50, 64, dtype=dtype) / 4, torch.randint(0, 50, (24,), device=device)
        labels[5] = -100  # with logits of standard deviation 2, which a GPU rounds to bf16 as PyTorch does

        def run(ours, dtype):
            leaves = [t.detach().clone().to(dtype).requires_grad_() for t in (x, w, gu, head)]
            a, b, c, d = leaves
            if ours:
                y, h, loss = halftone.rms_norm(a, b), halftone.swiglu(c), halftone.linear_cross_entropy(a, d, labels)
            else:
                g, u = c.chunk(2, -1)
                y, h = torch.nn.functional.rms_norm(a, (64,), b, 1e-5), torch.nn.functional.silu(g) * u
                loss = torch.nn.functional.cross_entropy((a @ d.t()).to(torch.promote_types(dtype, torch.float32)), labels)
            (y.square().sum() + h.sum() + 4 * loss).backward()  # 4: exact in bf16
            return [y, h, loss] + [t.grad for t in leaves]

        exact = run(False, torch.float64)
        found = [sqnr(reference, value) for value, reference in zip(run(True, dtype), exact)]
        theirs = [sqnr(reference, value) for value, reference in zip(run(False, dtype), exact)]
        # bf16: PyTorch's own accuracy less half a dB, since two correct programs round differently, and at least 45.
        bars = [100] * len(found) if dtype == torch.float32 else [max(45, value - 0.5) for value in theirs]
        for name, value, bar in zip(("rms_norm", "swiglu", "loss", "dx", "d norm weight", "d gate and up", "d head"), found, bars):
            assert value >= bar, f"fused ops in {dtype}: {name} has {value:.1f} dB against float64, at least {bar:.1f} expected"
        print(f"rms_norm, swiglu and linear_cross_entropy in {dtype}: {min(found):.1f} dB against float64, PyTorch's own {min(theirs):.1f}")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.output = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64, bias=False), torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.output(x + self.down(torch.nn.functional.gelu(self.up(x))))


def check_compile():
    counters = torch._dynamo.utils.counters
    # Inductor starts processes that import torch themselves, which needs NVIDIA's real libraries.
    backends = ["aot_eager"] + (["inductor"] if device == "cpu" and "HALFTONE_STAND_INS" not in os.environ else [])
    for recipe in ("mxfp4", "int8", "fp8_rowwise"):
        for backend in backends:
            model = halftone.convert(Model().to(device), recipe)
            assert (model.halftone_converted, model.halftone_kept) == ({"up": recipe, "down": recipe}, {"output": "in ignore"})
            reference, losses = copy.deepcopy(model), []
            torch._dynamo.reset()
            counters.clear()
            compiled = torch.compile(model, fullgraph=True, backend=backend)
            x = randn(8, 64)
            for step in range(4):
                halftone.set_draws(seed=1, step=step)
                for m, f in ((model, compiled), (reference, reference)):
                    m.zero_grad()
                    f(x).square().sum().backward()
                for (name, a), b in zip(model.named_parameters(), reference.parameters()):
                    assert sqnr(b.grad, a.grad) > 100, f"{recipe}, {backend}, step {step}: {name}.grad differs from eager mode: {sqnr(b.grad, a.grad)} dB"
                losses.append(model.up.weight.grad.clone())
            assert recipe != "mxfp4" or not torch.equal(losses[0], losses[1]), "the step is frozen into the graph"
            assert counters["stats"]["unique_graphs"] == 1, f"{recipe}, {backend}: compiled {counters['stats']['unique_graphs']} times"
    halftone.set_draws(seed=0, step=0)
    torch._dynamo.reset()
    x = randn(8, 64)
    compiled = torch.compile(lambda x: halftone.dequantize(halftone.quantize(x, "mxfp4")), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), halftone.dequantize(halftone.quantize(x, "mxfp4")))
    print(f"torch.compile(fullgraph=True) equals eager mode with {', '.join(backends)}, one graph for all steps")


def check_convert():
    """Recipes by layer, in two calls; why layers stay as they are."""
    model = halftone.convert(Model().to(device), "fp8_rowwise", targets=["re:up"])
    halftone.convert(model, "mxfp4", {"use_hadamard": True}, ignore=[])
    assert model.halftone_converted == {"up": "fp8_rowwise", "down": "mxfp4"}, model.halftone_converted
    assert model.halftone_kept == {"output": "64 x 10: mxfp4 needs multiples of 32"}, model.halftone_kept
    assert (model.up.recipe, model.down.recipe, model.down.options) == ("fp8_rowwise", "mxfp4", "use_hadamard=true")
    print("convert takes several calls and says why layers stay as they are")


def check_evaluation():
    """Encoder layers of PyTorch, which in evaluation read the weights of their linear layers themselves, keep the recipe."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    plain = torch.nn.TransformerEncoder(layer, 2).to(device).eval()
    model = halftone.convert(copy.deepcopy(plain), "mxfp4")
    assert len(model.halftone_converted) == 4
    assert list(model.halftone_kept) == ["layers.0.self_attn.out_proj", "layers.1.self_attn.out_proj"]
    assert all("NonDynamicallyQuantizableLinear" in reason for reason in model.halftone_kept.values()), model.halftone_kept
    x, padding = randn(2, 8, 64), torch.tensor([[False] * 8, [False] * 5 + [True] * 3], device=device)
    for more in ({}, {"src_key_padding_mask": padding}):
        with torch.no_grad():
            y, exact = model(x, **more), plain(x, **more)
        trained = model(x, **more)  # with gradients enabled PyTorch does not take its fast path
        kept = torch.ones(2, 8, dtype=torch.bool, device=device) if not more else ~padding
        assert sqnr(y[kept], trained[kept]) > 100 and sqnr(y[kept], exact[kept]) < 40, f"evaluation passes the recipe by, {list(more)}"
    print("evaluation of encoder layers keeps the recipe")


def check_other_modes():
    """Where PyTorch makes tensors of another kind or elsewhere: the step that set_draws keeps is of either."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        layer = halftone.Linear(64, 32, device=device, recipe="mxfp4")
        layer(torch.randn(4, 64, device=device)).sum().backward()
        assert layer.weight.grad.shape == (32, 64)
    x, w = randn(8, 64), randn(32, 64)
    with torch.device("meta"):
        assert torch.equal(halftone.linear(x, w, recipe="mxfp4"), halftone.linear(x, w, recipe="mxfp4", step=0))
    print("FakeTensorMode and another default device")


def check_graphs():
    """Replays of a CUDA graph draw anew from a step on the device, and equal eager mode (docs/spec/numerics.md 13.4)."""
    if device == "cpu":
        print("CUDA graphs: not checked, no CUDA device")
        return
    torch.use_deterministic_algorithms(True, warn_only=True)  # no timed choice of algorithm: equal bits
    cases = [("mxfp4", ""), ("nvfp4", "style=torchao"), ("amdfp4", ""), ("int8", "stochastic_rounding=true"), ("int4", "use_sr_grad=true"),
             ("fp8_rowwise", "")]
    for recipe, options in cases:
        x, w, dy = randn(96, 160, dtype=torch.bfloat16, grad=True), randn(64, 160, dtype=torch.bfloat16, grad=True), randn(96, 64, dtype=torch.bfloat16)

        def run(step):
            y = halftone.linear(x, w, None, recipe, options, name="w", seed=3, step=step)
            return y, *torch.autograd.grad(y, (x, w), dy)

        step = torch.zeros((), dtype=torch.int64, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            eager = {s: [t.detach().clone() for t in run(s)] for s in (3, 4)}
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run(step)
        replays = {}
        for s in (3, 4, 3):
            step.fill_(s)
            graph.replay()
            replays[s] = [t.detach().clone() for t in out]
            for name, a, b in zip(("y", "dx", "dw"), eager[s], replays[s]):
                assert torch.equal(a, b), f"{recipe} {options}: {name} of a replay at step {s} differs from eager mode: {sqnr(a, b)} dB"
        assert recipe == "fp8_rowwise" or not torch.equal(replays[3][2], replays[4][2]), f"{recipe}: the step is frozen into the graph"
    hidden, head = randn(96, 160, dtype=torch.bfloat16, grad=True), randn(64, 160, dtype=torch.bfloat16, grad=True)
    labels = torch.randint(0, 64, (96,), device=device)

    def run_head():
        loss = halftone.linear_cross_entropy(hidden, head, labels)
        return loss, *torch.autograd.grad(loss, (hidden, head))

    run_head()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run_head()
    for ignored in (0, 17):  # labels are counted when the graph runs
        labels[:ignored] = -100
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(out, run_head())), f"linear_cross_entropy in a graph, {ignored} labels ignored"
    torch.use_deterministic_algorithms(False)
    print(f"replays of CUDA graphs equal eager mode at every step in {len(cases)} recipes")


def expect_error(text, call, anywhere=False):
    try:
        call()
    except (RuntimeError, ImportError, ValueError) as error:
        message = str(error) if anywhere else str(error).split("\n")[0]
        assert text in message, f"expected '{text}' in: {message}"
        return
    raise AssertionError(f"expected an error with '{text}'")


def check_odd_axes():
    """An odd axis is never packed (docs/spec/numerics.md 2.3): one error from the kernels, from Meta tensors and while compiling."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # it prints a stack per error that is expected here
    torch._dynamo.reset()
    compiled = torch.compile(ops.quantize, backend="aot_eager", fullgraph=True, dynamic=True)
    for format in ("mxfp4:packed", "e2m1:32x32:packed", "nvfp4:packed", "nvfp4:16x16:packed", "int4:packed", "uint4:packed"):
        for axis, shape in ((1, (32, 31)), (0, (31, 32))):
            text = (f"halftone.quantize: expected dimension {axis} of x to be even for packed codes (two along it share a byte), found 31; "
                    "give it an even length or leave 'packed' out of the format")
            x, transposed = randn(*shape), axis == 0
            expect_error(text, lambda: halftone.quantize(x, format, transposed=transposed))
            expect_error(text, lambda: halftone.quantize(x.to("meta"), format, transposed=transposed))
            expect_error(text, lambda: compiled(x, format, transposed=transposed), anywhere=True)
            plain = format.replace(":packed", "")
            assert halftone.quantize(x, plain, transposed=transposed).codes.shape == (32, 31)
            # The other dimension may be odd.
            q = halftone.quantize(x, format, transposed=not transposed)
            assert q.codes.shape == (31, 16) and halftone.dequantize(q).shape == (31, 32), format
            meta = halftone.quantize(x.to("meta"), format, transposed=not transposed)
            assert [t.shape for t in meta.tensors] == [t.shape for t in q.tensors], format
    for shape in ((32, 30), (8, 64)):  # symbolic sizes
        x = randn(*shape)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x, "mxfp4:packed"), ops.quantize(x, "mxfp4:packed"))), shape
    torch._dynamo.reset()
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.NOTSET)
    # A rotation pads its last group.
    q, meta = (halftone.quantize(x, "mxfp4:hadamard=32:packed", transposed=True) for x in (randn(31, 32), torch.empty(31, 32, device="meta")))
    assert q.codes.shape == meta.codes.shape == (32, 16)


def check_refusals(x, w):
    """What kernels would misread is refused by them and by Meta tensors alike."""
    labels, q = torch.zeros(8, dtype=torch.int64, device=device), halftone.quantize(x, "int8")
    meta = [t.to("meta") for t in q.tensors]
    cases = {
        "expected gu[..., 2F] and dh[..., F]": lambda to: ops.swiglu_backward(to(w), to(w)),
        "expected dy of the shape of x": lambda to: ops.rms_norm_backward(to(w), to(x), to(w[0]), 1e-5),
        "expected x[..., D] and weight[D] with D of at least 1, found [8, 64] and [32]": lambda to: ops.rms_norm(to(x), to(w[0, :32]), 1e-5),
        "expected x in float32 beside a weight in float32": lambda to: ops.rms_norm(to(x.bfloat16()), to(w[0]), 1e-5),
        "expected gu[..., 2F] with F of at least 1": lambda to: ops.swiglu(to(x[:, :0])),
        "expected dy[..., N] beside": lambda to: ops.linear_backward(to(x), to(x), to(w), None, "none", "", "w", 0, None, 0, [True, True, False]),
        "there is no bias": lambda to: ops.linear_backward(to(x[:, :32]), to(x), to(w), None, "none", "", "w", 0, None, 0, [True, True, True]),
        "at least one row and column": lambda to: ops.linear(to(x[:, :0]), to(w[:, :0]), None, "none"),
        "at least one row and column, found [0, 64]": lambda to: ops.linear_cross_entropy(to(x), to(w[:0]), to(labels)),
        "sizes that are multiples of 16, weight is [20, 64]": lambda to: ops.linear(to(x), to(w[:20]), None, "int8"),
        "expected x[T, K] and int64 labels[T], found [8, 64] and [7]": lambda to: ops.linear_cross_entropy(to(x), to(w), to(labels[1:])),
        "expected a float32 or bfloat16 tensor, found Half": lambda to: ops.quantize(to(x.half()), "int8"),
        "operands of equal length": lambda to: ops.scaled_mm([to(x)], "hp", [to(w[:, :32])], "hp"),
        "expected out_dtype float32 or bfloat16": lambda to: ops.scaled_mm([to(x)], "hp", [to(w)], "hp", out_dtype=torch.float16),
    }
    for text, call in cases.items():
        expect_error(text, lambda: call(lambda t: t))
        expect_error(text, lambda: call(lambda t: t.to("meta")))
    for format, text in (("mxfp4:floor:rceil", "both set the scale mode"), ("mxfp4:1x32:32x32", "both set which elements share a scale"),
                         ("e4m3:fp32:pow2", "both set the scale"), ("e4m3:floor=0.5", "floor is the smallest scale of int8 or int4 rows"),
                         ("int8:floor=1e-40", "at least 2^-126"), ("int8:floor=inf", "a finite number"),
                         ("mxfp4:clip=dynamic:floor", "leave the scale mode out"), ("mxfp4:clip=static:uos", "uos scales are not clipped"),
                         ("int8:hadamard=32", "a rotation goes with scales of blocks"), ("ternary:hadamard=16", "a rotation goes with"),
                         ("int8:1x32", "int8 elements do not combine with 1xB scales in fp32")):
        expect_error(text, lambda: halftone.Format(format).canonical)
    expect_error("is given twice", lambda: halftone.recipe_formats("mxfp4", "use_sr_grad=false,use_sr_grad=true"))
    rotated = halftone.quantize(w, "mxfp4:hadamard=32", transposed=True)
    expect_error("operands of one rotation", lambda: halftone.scaled_mm(rotated, halftone.quantize(w, "mxfp4", transposed=True)))
    expect_error("a floating-point dtype", lambda: halftone.dequantize(q, torch.int8))
    expect_error("first_row of at least 0", lambda: halftone.quantize(x, "mxfp4:sr", first_row=-1))
    nan = halftone.dequantize(halftone.quantize(torch.full((1, 4), float("nan"), device=device), "e4m3"), torch.bfloat16)
    assert (nan.view(torch.int16) == 0x7FC0).all()
    # A meta tensor beside real ones: PyTorch dispatches to Meta, which would return uninitialised memory.
    expect_error("expected weight on", lambda: ops.rms_norm(x, w[0].to("meta"), 1e-5))
    expect_error("expected labels on", lambda: ops.linear_cross_entropy(x, w, labels.to("meta")))
    expect_error("expected step on", lambda: halftone.linear(x, w, step=torch.tensor(1, device="meta")))
    expect_error("expected every tensor on", lambda: ops.dequantize([q.codes, *meta[1:]], q.format))
    expect_error("expected a step from 0 to 4294967295, found -5", lambda: halftone.quantize(x, "mxfp4:sr", step=-5))
    expect_error("expected a step from 0 to 4294967295", lambda: halftone.linear(x, w, step=2**32))
    # Gradients are computed with the loss and are constants to PyTorch.
    hidden = x.clone().requires_grad_()
    gradient, = torch.autograd.grad(halftone.linear_cross_entropy(hidden, w, labels).square(), hidden, create_graph=True)
    expect_error("not implemented", lambda: gradient.square().sum().backward())
    model = Model()
    expect_error("unknown scheme 'fp9'", lambda: halftone.convert(model, "fp9"))
    assert type(model.up) is torch.nn.Linear, "a refused recipe leaves the model as it was"
    expect_error("expected lists of names", lambda: halftone.convert(model, "int8", targets="up"))
    expect_error("multiples of 16", lambda: halftone.Linear(64, 20, recipe="int8"))


def check_errors():
    x, w = randn(8, 64), randn(32, 64)
    if device != "cpu":
        expect_error("expected weight on", lambda: halftone.rms_norm(x, w[0].cpu()))
        expect_error("expected dh on", lambda: ops.swiglu_backward(w[:, :32].cpu(), w))
        expect_error("expected labels on", lambda: halftone.linear_cross_entropy(x, w, torch.zeros(8, dtype=torch.int64)))
    check_refusals(x, w)
    expect_error("unknown element or scheme 'e9'", lambda: halftone.quantize(x, "e9"))
    expect_error("unknown word 'rowwise'", lambda: halftone.quantize(x, "e4m3:rowwise"))
    expect_error("int8 elements do not combine with", lambda: halftone.quantize(x, "int8:1x32"))
    expect_error("only 4-bit codes are packed", lambda: halftone.quantize(x, "e4m3:packed"))
    expect_error("MS-EDEN needs", lambda: halftone.quantize(x, "nvfp4:eden"))
    expect_error("expected a float32 or bfloat16 tensor", lambda: halftone.quantize(x.half(), "e4m3"))
    check_odd_axes()
    q = halftone.quantize(x, "mxfp8_e4m3")
    expect_error("expected scales of [8, 2]", lambda: halftone.dequantize(q._replace(scales=q.scales[:4])))
    expect_error("operands of equal length", lambda: halftone.scaled_mm(q, halftone.quantize(x[:, :32], "mxfp8_e4m3")))
    expect_error("unknown scheme 'fp9'", lambda: halftone.linear(x, w, recipe="fp9"))
    expect_error("use_hadamard: legal with", lambda: halftone.linear(x, w, recipe="int8", options={"use_hadamard": True}))
    expect_error("unknown option 'colour'", lambda: halftone.linear(x, w, recipe="int8", options="colour=red"))
    expect_error("multiples of 16", lambda: halftone.linear(x, w[:20], recipe="int8"))
    expect_error("expected x[..., K] and weight[N, K]", lambda: halftone.linear(x, w.t()))
    expect_error("that ['none_such'] matches", lambda: halftone.convert(Model(), "int8", targets=["none_such"]))
    environment = dict(os.environ, HALFTONE_LIBRARY=os.path.join(cache.name, "missing.so"))
    code = ("import sys, os; sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL) if os.environ.get('HALFTONE_STAND_INS') else None; "
            f"sys.path[:0] = [{str(_torch_ops.SOURCE / 'python')!r}]; import halftone")
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    last = run.stderr.strip().splitlines()[-1]
    assert run.returncode != 0 and "tools/build release halftone_ops" in last and "missing.so" in last, run.stderr
    print("errors say what was expected and found")


def check_views():
    """Operands that are views, with rows that overlap, that begin anywhere or lie at odd distances: as their contiguous copies."""
    b = randn(32, 64)
    wide, one = randn(16, 72, dtype=torch.bfloat16), randn(64, dtype=torch.bfloat16)
    views = {"columns of a row of 72": wide[:, :64], "columns from 4 on": wide[:, 4:68], "one row for all": one.expand(16, 64),
             "one number for all": one[0].expand(16, 64), "a window": torch.randn(79).to(device, torch.bfloat16).unfold(0, 64, 1),
             "a column": randn(64, 1, dtype=torch.bfloat16).t(), "every second": randn(16, 128, dtype=torch.bfloat16)[:, ::2]}
    for name, view in views.items():
        copy_of = view.clone(memory_format=torch.contiguous_format)
        for format in ("int8", "e4m3:row", "mxfp8_e4m3"):
            for ours, theirs in zip(halftone.quantize(view, format).tensors, halftone.quantize(copy_of, format).tensors):
                assert torch.equal(ours, theirs), f"quantize of {name} as {format}"
            right = halftone.quantize(b, format)
            found, expected = (halftone.scaled_mm(halftone.Quantized.plain(x), right) for x in (view, copy_of))
            assert sqnr(expected, found) > 60, f"scaled_mm of {name} and {format}: {sqnr(expected, found)} dB"
        for recipe in ("none", "int8", "mxfp4"):
            found, expected = (halftone.linear(x, b.bfloat16(), recipe=recipe) for x in (view, copy_of))
            assert sqnr(expected, found) > 50, f"linear of {name} in {recipe}: {sqnr(expected, found)} dB"
    q, right = halftone.quantize(randn(16, 64), "int8"), halftone.quantize(b, "int8")
    memory = torch.empty(16 * 64 + 1, dtype=torch.int8, device=device)
    odd = memory[1:].view(16, 64)
    odd.copy_(q.codes)
    assert torch.equal(halftone.scaled_mm(q._replace(codes=odd), right), halftone.scaled_mm(q, right)), "codes from an odd address on"


def check_edges():
    nan = randn(4, 64)
    nan[1, 3] = float("nan")
    w = randn(32, 64)
    for recipe in RECIPES:
        y = halftone.linear(nan, w, recipe=recipe)
        # A NaN poisons its scale group: its row, or the tensor if that shares one scale.
        whole = recipe in ("fp8_tensorwise", "nvfp4", "amdfp4", "nvint4")
        assert y[1].isnan().all() and (whole or not y[[0, 2, 3]].isnan().any()), recipe
        assert halftone.linear(randn(0, 64), w, recipe=recipe).shape == (0, 32)
        x = randn(64, 24, grad=True)
        halftone.linear(x.t(), w, recipe=recipe).t().backward(randn(32, 24))  # strided x and dy
        assert x.grad.isfinite().all()
    for format in ("e4m3", "mxfp4", "nvfp4", "int8", "uint4", "e4m3:128x128"):
        assert halftone.dequantize(halftone.quantize(randn(0, 64), format)).shape == (0, 64)
        assert (halftone.dequantize(halftone.quantize(torch.zeros(3, 64, device=device), format)) == 0).all(), format
    check_views()
    for text in ("e4m3:row:pow2", "mxfp4:two_level=blockwise:packed", "nvfp4:chain=torchao:16x16", "nvfp4:choice=absolute", "nvint4", "int8:floor=1e-05:sr", "mxfp6_e3m2:even"):
        canonical = halftone.Format(text).canonical
        assert halftone.Format(canonical).canonical == canonical, canonical
    q = halftone.quantize(randn(4, 64), "mxfp8_e4m3")
    codes, scales = q.typed()
    assert codes.dtype == torch.float8_e4m3fn and scales.dtype == torch.float8_e8m0fnu
    decoded = codes.float() * scales.float().repeat_interleave(32, 1)
    assert torch.equal(decoded, halftone.dequantize(q)), "PyTorch reads other numbers from codes and scales"
    print("NaN, empty, zero and strided inputs behave; formats survive their string; PyTorch's 8-bit dtypes read the same numbers")


_torch_ops.run([check_schemas, check_linears, check_fused, check_edges, check_errors, check_compile, check_convert, check_evaluation,
                check_other_modes, check_graphs])
