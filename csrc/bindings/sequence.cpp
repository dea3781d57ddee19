// Sequences of csrc/kernels on tensors: calls take tensor objects and return one or more.
#include "kernels/sequence.h"

#include <memory>
#include <utility>
#include <vector>

#include "bindings/numbers.h"
#include "bindings/plain_tensors.h"

namespace rlopt {

namespace {

/// From this size on, glibc's malloc maps a new block for every call (its largest dynamic threshold, see
/// mallopt(3)), and the system clears each of its pages.
constexpr int64_t kLargeArena = (32 << 20) / static_cast<int64_t>(sizeof(float));

/// A sequence and its schedule for the most recent input shapes. Other shapes are rescheduled each time, even
/// if two alternate.
class KernelSequence {
 public:
  /// Instructions are tuples; see torchrlopt/executors/eager/sequences.py.
  KernelSequence(const PlainTensors& tensors, int num_inputs, const py::list& instructions,
                 std::vector<int> outputs)
      : KernelSequence(tensors, num_inputs, read(instructions), std::move(outputs)) {}

  /// The outputs, or the tensor itself if there is one. None if an input's layout is not supported, or it is
  /// not a plain tensor.
  py::object call(const py::args& inputs) {
    const size_t count = inputs.size();
    std::vector<kernels::Shape> shapes;
    std::vector<char*> memory;
    shapes.reserve(count);
    memory.reserve(count + sequence_.num_outputs() + 1);
    for (size_t i = 0; i < count; ++i) {
      PyObject* const input = PyTuple_GET_ITEM(inputs.ptr(), static_cast<Py_ssize_t>(i));
      const std::optional<View> view = i < is_packed_.size() && is_packed_[i]
                                           ? tensors_.view(input, kernels::Element::kFloat32)
                                           : tensors_.view_of_any(input);
      if (!view) return py::none();
      shapes.push_back(view->shape);
      memory.push_back(view->data);
    }
    const int num_threads = tensors_.num_threads();
    if (num_threads != num_threads_ || shapes != shapes_) {
      schedule_ = sequence_.schedule(shapes, num_threads);
      shapes_ = std::move(shapes);
      num_threads_ = num_threads;
    }
    // Keep the schedule alive: another Python thread may replace it for other inputs meanwhile.
    const std::shared_ptr<const kernels::Schedule> schedule = schedule_;
    if (schedule == nullptr) return py::none();
    // The blocks of single calls are usually smaller.
    if (schedule->arena() >= kLargeArena && !schedule->has_chunks()) return py::none();
    py::tuple outputs(schedule->outputs().size());
    for (size_t i = 0; i < schedule->outputs().size(); ++i) {
      char* data = nullptr;
      outputs[i] = tensors_.make(schedule->outputs()[i], data);
      memory.push_back(data);
    }
    char* arena = nullptr;
    const py::object held = tensors_.make(kernels::contiguous({schedule->arena()}), arena);
    memory.push_back(arena);
    {
      const py::gil_scoped_release release;
      schedule->run(memory.data());
    }
    return outputs.size() == 1 ? py::object(outputs[0]) : py::object(std::move(outputs));
  }

  void take_images(std::vector<int64_t> at_a_time) {
    sequence_.take_images(std::move(at_a_time));
    schedule_anew();
  }

  void take_bands(int64_t count) {
    sequence_.take_bands(count);
    schedule_anew();
  }

  /// For the current schedule.
  std::vector<int64_t> images_at_a_time() const {
    return schedule_ == nullptr ? std::vector<int64_t>{} : schedule_->images_at_a_time();
  }

  std::vector<int64_t> bands() const {
    return schedule_ == nullptr ? std::vector<int64_t>{} : schedule_->bands();
  }

 private:
  KernelSequence(const PlainTensors& tensors, int num_inputs, std::vector<kernels::Instruction> instructions,
                 std::vector<int> outputs)
      : tensors_(tensors), is_packed_(static_cast<size_t>(std::max(num_inputs, 0)), false) {
    for (const kernels::Instruction& each : instructions)
      if (each.packed >= 0 && each.packed < num_inputs) is_packed_[at(each.packed)] = true;
    sequence_ = kernels::Sequence(num_inputs, std::move(instructions), std::move(outputs));
  }

  void schedule_anew() {
    shapes_.clear();
    num_threads_ = 0;
  }

  /// Reads `Instruction` of torchrlopt/executors/eager/sequences.py.
  static std::vector<kernels::Instruction> read(const py::list& instructions) {
    std::vector<kernels::Instruction> found;
    for (const py::handle& item : instructions) {
      const auto fields = py::cast<py::tuple>(item);
      if (fields.size() != 7) throw py::value_error("an instruction has seven fields");
      const auto operation = py::cast<int>(fields[0]);
      if (operation < 0 || operation >= kernels::kNumOperations) throw py::value_error("no such operation");
      kernels::Instruction each;
      each.operation = static_cast<kernels::Operation>(operation);
      each.in = py::cast<int>(fields[1]);
      each.packed = py::cast<int>(fields[2]);
      each.other = py::cast<int>(fields[3]);
      each.room = py::cast<int>(fields[4]);
      each.first_channel = py::cast<int64_t>(fields[5]);
      read_numbers(py::cast<py::tuple>(fields[6]), each);
      found.push_back(std::move(each));
    }
    return found;
  }

  PlainTensors tensors_;
  std::vector<bool> is_packed_;  // by input
  kernels::Sequence sequence_;
  std::vector<kernels::Shape> shapes_;
  int num_threads_ = 0;
  std::shared_ptr<const kernels::Schedule> schedule_;  // null: the inputs are not supported
};

}  // namespace

void bind_sequence(py::module_& m) {
  // In the order of the enumerations.
  const auto operations =
      py::make_tuple("convolve", "pool", "linear", "pointwise", "room", "same", "view", "slice", "shuffle");
  const auto pointwise = py::make_tuple("activate", "add", "multiply", "scale");
  if (operations.size() != kernels::kNumOperations || pointwise.size() != kernels::kNumPointwise)
    throw py::value_error("an operation of a sequence has no name");
  m.attr("KERNEL_OPERATIONS") = operations;
  m.attr("POINTWISE_OPERATIONS") = pointwise;
  py::class_<KernelSequence>(
      m, "KernelSequence", "Calls of kernels that follow on each other, as one call in one parallel region.")
      .def(py::init<const PlainTensors&, int, const py::list&, std::vector<int>>(), py::arg("kernels"),
           py::arg("num_inputs"), py::arg("instructions"), py::arg("outputs"))
      .def("__call__", &KernelSequence::call,
           "The outputs, one tensor where there is one; None where an input does not lie as it is read, and "
           "where a large block of memory would be mapped anew.")
      .def("take_images", &KernelSequence::take_images, py::arg("at_a_time"),
           "Have each thread take so many images of a batch through the calls, in their order and over and "
           "over, instead of what is chosen. 0, and what is no part of a batch: threads share a call.")
      .def("images_at_a_time", &KernelSequence::images_at_a_time,
           "How many images of the batch each thread takes through some of the calls at a time, in the order "
           "of the calls; 0 where threads share each call. As it was scheduled last.")
      .def("take_bands", &KernelSequence::take_bands, py::arg("count"),
           "Cut pairs of calls into so many bands of rows, see `bands`, instead of what is chosen; 0: none.")
      .def(
          "bands", &KernelSequence::bands,
          "Into how many bands of rows the pairs of calls are cut of which a thread does both, band by band, "
          "in order: a 1 x 1 convolution and one of small groups, as depthwise ones, behind it. As it was "
          "scheduled last.");
}

}  // namespace rlopt
