// Convolutions, products and pools of csrc/kernels on tensors: calls take tensor objects and return one.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "bindings/numbers.h"
#include "bindings/plain_tensors.h"
#include "kernels/attention.h"
#include "kernels/recurrent.h"

namespace rlopt {

namespace {

/// A new tensor for the result, or the channels of `room` from `first_channel` on.
py::object place_for(const PlainTensors& tensors, kernels::Call& call, const py::object& room,
                     int64_t first_channel, void*& out) {
  if (room.is_none()) {
    char* data = nullptr;
    py::object made = tensors.make(call.result, data);
    out = data;
    return made;
  }
  const std::optional<View> whole = tensors.view_of_any(room.ptr());
  if (!whole) throw py::value_error("the room for a result is no image");
  out = whole->data +
        kernels::write_into(call, whole->shape, first_channel) * kernels::bytes_of(whole->shape.element);
  return room;
}

/// Runs one instruction on tensors. None if the kernels do not support an operand's layout, or it is not a
/// plain tensor.
py::object run(const PlainTensors& tensors, const kernels::Instruction& given, const py::object& x,
               const py::object& packed = py::none(), const py::object& summand = py::none(),
               const py::object& room = py::none(), int64_t first_channel = 0) {
  const std::optional<View> in = tensors.view_of_any(x.ptr());
  const std::optional<View> other = summand.is_none() ? std::nullopt : tensors.view_of_any(summand.ptr());
  if (!in || (!other && !summand.is_none())) return py::none();
  std::optional<kernels::Call> call = kernels::call_of(given, in->shape, other ? &other->shape : nullptr);
  if (!call) return py::none();
  kernels::Operands operands{in->data, nullptr, other ? other->data : nullptr};
  if (!packed.is_none())
    operands.packed = tensors.floats(packed.ptr(), kernels::packed_size(kernels::weight_layout(call->given)));
  py::object result = place_for(tensors, *call, room, first_channel, operands.out);
  const kernels::Work work = kernels::work_of(given, call->given, tensors.num_threads());
  if (work.is_empty()) return result;
  const py::gil_scoped_release release;
  kernels::run(work, operands);
  return result;
}

kernels::Instruction instruction(kernels::Operation operation, const py::tuple& items) {
  kernels::Instruction made;
  made.operation = operation;
  read_numbers(items, made);
  return made;
}

kernels::Element element_of(const std::string& dtype) {
  for (size_t i = 0; i < kernels::kElements.size(); ++i)
    if (dtype == kernels::kElements[i].name) return static_cast<kernels::Element>(i);
  throw py::value_error("there are no kernels of " + dtype);
}

/// Names of the dtypes, in the order of the enumeration.
py::tuple elements() {
  py::tuple names(kernels::kElements.size());
  for (size_t i = 0; i < kernels::kElements.size(); ++i) names[i] = kernels::kElements[i].name;
  return names;
}

/// Names of the dtypes that have kernels.
std::vector<std::string> dtypes() {
  std::vector<std::string> found;
  for (const kernels::ElementFacts& each : kernels::kElements)
    if (kernels::has_kernels(element_of(each.name))) found.emplace_back(each.name);
  return found;
}

int best_method(int64_t images, int64_t channels, int64_t height, int64_t width, const py::tuple& items,
                int num_threads, const std::string& dtype, bool may_split) {
  if (num_threads < 1) throw std::invalid_argument("no threads");
  kernels::Instruction given = instruction(kernels::Operation::kConvolve, items);
  given.method = kernels::Method::kSums;
  const std::optional<kernels::Call> call = kernels::call_of(
      given, kernels::channels_last(images, channels, height, width, element_of(dtype)), nullptr);
  return call ? static_cast<int>(kernels::best_method(call->given, num_threads, may_split)) : 0;
}

py::object convolve(const PlainTensors& tensors, const py::object& x, const py::object& packed,
                    const py::object& summand, const py::tuple& items, const py::object& room,
                    int64_t first_channel) {
  const kernels::Instruction given = instruction(kernels::Operation::kConvolve, items);
  return run(tensors, given, x, packed, summand, room, first_channel);
}

py::object pool(const PlainTensors& tensors, const py::object& x, const py::tuple& items,
                const py::object& room, int64_t first_channel) {
  const kernels::Instruction given = instruction(kernels::Operation::kPool, items);
  return run(tensors, given, x, py::none(), py::none(), room, first_channel);
}

/// x[..., in] to [..., out], contiguous; None also if the rows of x are not equidistant.
py::object linear(const PlainTensors& tensors, const py::object& x, const py::object& packed,
                  const py::tuple& items) {
  return run(tensors, instruction(kernels::Operation::kLinear, items), x, packed);
}

py::object shuffle(const PlainTensors& tensors, const py::object& x, int64_t groups) {
  return run(tensors, instruction(kernels::Operation::kShuffle, py::make_tuple(groups)), x);
}

/// None if the kernel does not support the operands' layout or sizes, or they are not plain tensors.
py::object attend(const PlainTensors& tensors, const py::object& q, const py::object& k, const py::object& v,
                  const py::object& mask, bool is_causal, float scale, bool is_by_heads) {
  std::optional<View> of_mask;
  if (!mask.is_none()) {
    of_mask = tensors.view(mask.ptr());
    if (!of_mask) return py::none();
  }
  const std::optional<View> queries = tensors.view(q.ptr()), keys = tensors.view(k.ptr()),
                            values = tensors.view(v.ptr());
  if (!queries || !keys || !values) return py::none();
  std::optional<kernels::AttentionCall> call =
      kernels::attention_of(queries->shape, keys->shape, values->shape, of_mask ? &of_mask->shape : nullptr,
                            is_causal, scale, is_by_heads);
  if (!call) return py::none();
  kernels::Attention& given = call->given;
  given.q.data = queries->data, given.k.data = keys->data, given.v.data = values->data;
  given.mask.data = of_mask ? of_mask->data : nullptr;
  char* out = nullptr;
  py::object result = tensors.make(call->result, out);
  given.out = out;
  {
    const int num_threads = tensors.num_threads();
    const py::gil_scoped_release release;
    kernels::attend(given, num_threads);
  }
  return result;
}

/// The weights of a layer, as a list of [of inputs, of state, input bias, state bias] per direction; biases
/// may be None.
std::vector<kernels::RecurrentWeights> recurrent_weights(const PlainTensors& tensors,
                                                         const kernels::RecurrentLayout& layout,
                                                         const py::list& weights) {
  const auto rows = static_cast<size_t>(kernels::num_gates(layout.cell) * layout.hidden);
  if (weights.size() != static_cast<size_t>(layout.directions))
    throw py::value_error("a recurrent layer has weights for each direction");
  std::vector<kernels::RecurrentWeights> found;
  for (const py::handle& each : weights) {
    const auto of = each.cast<std::array<py::object, 4>>();
    const auto bias = [&](const py::object& b) {
      return b.is_none() ? nullptr : tensors.floats(b.ptr(), rows);
    };
    found.push_back({tensors.floats(of[0].ptr(), rows * static_cast<size_t>(layout.inputs)),
                     tensors.floats(of[1].ptr(), rows * static_cast<size_t>(layout.hidden)), bias(of[2]),
                     bias(of[3])});
  }
  return found;
}

kernels::Cell cell_of(int64_t number) {
  if (number < 0 || number > static_cast<int64_t>(kernels::Cell::kRelu))
    throw py::value_error("there is no such recurrent cell");
  return static_cast<kernels::Cell>(number);
}

/// The state of a layer, or null for none.
const float* state_of(const PlainTensors& tensors, const py::object& state, const kernels::Recurrent& given) {
  if (state.is_none()) return nullptr;
  return tensors.floats(state.ptr(),
                        static_cast<size_t>(given.layout.directions * given.batch * given.layout.hidden));
}

/// A new contiguous tensor of these sizes.
py::object make(const PlainTensors& tensors, std::initializer_list<int64_t> sizes, float*& data) {
  char* raw = nullptr;
  py::object made = tensors.make(kernels::contiguous(sizes), raw);
  data = reinterpret_cast<float*>(raw);  // NOLINT: what it is
  return made;
}

/// None if the input is empty or its numbers are not adjacent, or it is not a plain tensor.
py::object recur(const PlainTensors& tensors, const py::object& x, const py::object& packed,
                 const py::object& first_h, const py::object& first_c, int64_t cell, int64_t hidden,
                 int64_t directions) {
  const std::optional<View> in = tensors.view(x.ptr());
  if (!in || tensors.element() != kernels::Element::kFloat32 || in->shape.rank != 3 || in->shape.is_empty() ||
      (in->shape.strides[2] != 1 && in->shape.sizes[2] != 1))
    return py::none();
  kernels::Recurrent given{};
  given.layout = {cell_of(cell), in->shape.sizes[2], hidden, directions};
  given.steps = in->shape.sizes[0], given.batch = in->shape.sizes[1];
  given.x = reinterpret_cast<const float*>(in->data);  // NOLINT: what it is
  given.x_of_step = in->shape.strides[0], given.x_of_batch = in->shape.strides[1];
  given.packed = tensors.floats(packed.ptr(), kernels::packed_size(given.layout));
  given.first_h = state_of(tensors, first_h, given), given.first_c = state_of(tensors, first_c, given);
  py::object y = make(tensors, {given.steps, given.batch, directions * hidden}, given.y);
  py::object h = make(tensors, {directions, given.batch, hidden}, given.h);
  const bool has_cells = given.layout.cell == kernels::Cell::kLstm;
  py::object c =
      has_cells ? make(tensors, {directions, given.batch, hidden}, given.c) : make(tensors, {0}, given.c);
  if (!has_cells) given.c = given.h;
  {
    const int num_threads = tensors.num_threads();
    const py::gil_scoped_release release;
    kernels::run(given, num_threads);
  }
  return py::make_tuple(y, h, c);
}

/// None if the tensor has gaps, or is not a plain one.
py::object is_finite(const PlainTensors& tensors, const py::object& x) {
  const std::optional<View> in = tensors.view(x.ptr());
  if (!in || !in->shape.is_contiguous() || tensors.element() != kernels::Element::kFloat32) return py::none();
  const int64_t count = in->shape.size();
  const py::gil_scoped_release release;
  const bool found = kernels::is_finite(reinterpret_cast<const float*>(in->data), count);  // NOLINT
  const py::gil_scoped_acquire acquire;
  return py::bool_(found);
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("kernel_instructions", &kernels::instructions,
        "\"amx\", \"avx512\" or \"avx2\": the most that the kernels use here; \"\" where there are none.");
  m.def("kernel_dtypes", &dtypes, "The types of numbers that there are kernels for, by name.");
  m.def(
      "kernel_takes_groups",
      [](int64_t out_channels, int64_t in_channels, int64_t groups, const std::string& dtype) {
        return kernels::takes_groups(out_channels, in_channels, groups, element_of(dtype));
      },
      py::arg("out_channels"), py::arg("in_channels"), py::arg("groups"), py::arg("dtype") = "float32",
      "Whether there is a kernel for a convolution of so many groups of channels.");
  m.def(
      "kernel_takes_attention",
      [](int64_t queries, int64_t keys, int64_t size, int64_t value_size, const std::string& dtype) {
        return kernels::takes_attention(queries, keys, size, value_size, element_of(dtype));
      },
      py::arg("queries"), py::arg("keys"), py::arg("size"), py::arg("value_size"),
      py::arg("dtype") = "float32",
      "Whether there is a kernel for attention, and quicker than ATen's, for a head of such sizes.");
  m.def(
      "kernel_method", &best_method, py::arg("images"), py::arg("channels"), py::arg("height"),
      py::arg("width"), py::arg("numbers"), py::arg("num_threads"), py::arg("dtype") = "float32",
      py::arg("may_split") = false,
      "The method by which a convolution of an image of these sizes takes the least time, of those that are "
      "equal over the reals, or, if `may_split`, 9 as well: float32 in two parts.");
  m.def(
      "kernel_recurrent_size",
      [](int64_t cell, int64_t inputs, int64_t hidden, int64_t directions) {
        return kernels::packed_size(kernels::RecurrentLayout{cell_of(cell), inputs, hidden, directions});
      },
      py::arg("cell"), py::arg("inputs"), py::arg("hidden"), py::arg("directions"),
      "Number of floats of the packed weights of a recurrent layer; ValueError for sizes without a kernel.");
  m.def("kernel_has_matrix_unit", &kernels::has_matrix_unit, "Whether there are kernels for a matrix unit.");
  m.def(
      "kernel_has_int8", [](const std::string& dtype) { return kernels::has_int8(element_of(dtype)); },
      py::arg("dtype") = "float32",
      "Whether products and convolutions of such numbers can be computed with 8-bit integers.");
  m.attr("KERNEL_ELEMENTS") = elements();
  m.attr("MOST_KERNEL_CHANNELS") = kernels::kMaxChannels;
  m.attr("MOST_KERNEL_STEP") = kernels::kMostStep;
  m.attr("MOST_KERNEL_AXES") = kernels::kMostAxes;
  m.attr("FEW_KERNEL_CHANNELS") = kernels::kFewChannels;
  m.attr("LEAST_KERNEL_CHANNELS") = kernels::kLeastChannels;
  py::class_<PlainTensors>(
      m, "ImageKernels",
      "Kernels for plain tensors on the CPU, of the example's type of numbers. ValueError "
      "where this PyTorch cannot be read, or there are no such kernels.")
      .def(py::init([](const py::object& example) { return PlainTensors(example.ptr()); }),
           py::arg("example"))
      .def(
          "packed_size",
          [](const PlainTensors& tensors, int64_t out_channels, int64_t in_channels, int64_t height,
             int64_t width, int64_t groups, int64_t method) {
            return kernels::packed_size({out_channels, in_channels, height, width, groups,
                                         kernels::method_of(method), tensors.element()});
          },
          py::arg("out_channels"), py::arg("in_channels"), py::arg("kernel_height"), py::arg("kernel_width"),
          py::arg("groups"), py::arg("method"),
          "Number of floats of a packed weight, whose type is float32 in any case: smaller numbers lie in it "
          "in pairs.")
      .def(
          "pack",
          [](const PlainTensors& tensors, const py::object& weight, const py::object& bias,
             int64_t out_channels, int64_t in_channels, int64_t height, int64_t width, int64_t groups,
             int64_t method, const py::object& packed) {
            const kernels::WeightLayout layout{
                out_channels,     in_channels, height, width, groups, kernels::method_of(method),
                tensors.element()};
            const size_t size = kernels::packed_size(layout);
            const auto outputs = static_cast<size_t>(out_channels);
            const size_t terms =
                static_cast<size_t>(in_channels / groups) * static_cast<size_t>(layout.num_taps());
            const float* const from = tensors.floats(weight.ptr(), outputs * terms);
            const float* const biases = bias.is_none() ? nullptr : tensors.floats(bias.ptr(), outputs);
            float* const to = tensors.floats(packed.ptr(), size);
            // For a small weight, waking threads takes longer than the work.
            const int num_threads = size < kernels::kSmallPacked ? 1 : tensors.num_threads();
            const py::gil_scoped_release release;
            kernels::pack(from, biases, layout, num_threads, to);
          },
          py::arg("weight"), py::arg("bias"), py::arg("out_channels"), py::arg("in_channels"),
          py::arg("kernel_height"), py::arg("kernel_width"), py::arg("groups"), py::arg("method"),
          py::arg("packed"), "Write the packed form of contiguous tensors of float32.")
      .def("convolve", &convolve, py::arg("x"), py::arg("packed"), py::arg("summand"), py::arg("numbers"),
           py::arg("room") = py::none(), py::arg("first_channel") = 0,
           "The result in channels_last, or the image into which it was written; None where x or the summand "
           "does not lie so or is no plain tensor.")
      .def("pool", &pool, py::arg("x"), py::arg("numbers"), py::arg("room") = py::none(),
           py::arg("first_channel") = 0, "A pool, in the same way.")
      .def(
          "attend", &attend, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("mask"), py::arg("is_causal"),
          py::arg("scale"), py::arg("is_by_heads"),
          "softmax(q k^T * scale + mask) v of [batch, head, row, number]; None where operands do not lie so, "
          "or have sizes for which it is not made.")
      .def(
          "shuffle", &shuffle, py::arg("x"), py::arg("groups"),
          "The channels in turns, one of each group, in channels_last; None where x does not lie so or is no "
          "plain tensor.")
      .def(
          "pack_recurrent",
          [](const PlainTensors& tensors, const py::list& weights, int64_t cell, int64_t inputs,
             int64_t hidden, const py::object& packed) {
            const kernels::RecurrentLayout layout{cell_of(cell), inputs, hidden,
                                                  static_cast<int64_t>(weights.size())};
            float* const to = tensors.floats(packed.ptr(), kernels::packed_size(layout));
            const std::vector<kernels::RecurrentWeights> given = recurrent_weights(tensors, layout, weights);
            const py::gil_scoped_release release;
            kernels::pack(given.data(), layout, to);
          },
          py::arg("weights"), py::arg("cell"), py::arg("inputs"), py::arg("hidden"), py::arg("packed"),
          "Write the packed form of contiguous weights and biases, a list of four for each direction.")
      .def("recurrent", &recur, py::arg("x"), py::arg("packed"), py::arg("first_h"), py::arg("first_c"),
           py::arg("cell"), py::arg("hidden"), py::arg("directions"),
           "Results, last states and last cells of a layer for x [steps, batch, number]; None where x is "
           "empty, has "
           "gaps between its numbers or is no plain tensor.")
      .def("is_finite", &is_finite, py::arg("x"),
           "Whether no element is infinite or NaN, in this thread; None where x has gaps or is no plain "
           "tensor.")
      .def("linear", &linear, py::arg("x"), py::arg("packed"), py::arg("numbers"),
           "The product of the last axis; None where rows are not equally far apart, or x is no plain "
           "tensor.");
}

}  // namespace rlopt
