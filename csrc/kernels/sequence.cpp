#include "kernels/sequence.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace rlopt::kernels {

std::optional<Call> call_of(const Instruction& given, const Shape& in, const Shape* other) {
  switch (given.operation) {
    case Operation::kConvolve:
      return convolution_of(in, other, given.window, given.groups, given.method, given.epilogue, given.types);
    case Operation::kLinear:
      return linear_of(in, given.window.out_channels, given.method, given.epilogue, given.types);
    case Operation::kPool:
      return pool_of(in, given.window, given.is_ceiled, given.types);
    case Operation::kPointwise:
      return pointwise_of(in, other, given.pointwise, given.epilogue, given.types);
    case Operation::kShuffle:
      return shuffle_of(in, given.groups);
    default:
      return std::nullopt;
  }
}

Work work_of(const Instruction& given, const Convolution& of, int num_threads) {
  switch (given.operation) {
    case Operation::kPool:
      return pool_work(of, given.pool, num_threads);
    case Operation::kPointwise:
      return pointwise_work(of, given.pointwise, num_threads);
    case Operation::kShuffle:
      return shuffle_work(of, num_threads);
    default:
      return convolution_work(of, num_threads);
  }
}

/// Goes through the instructions of a sequence for inputs of some shapes.
class Scheduler {
 public:
  Scheduler(const std::vector<Instruction>& instructions, const std::vector<int>& outputs,
            const std::vector<Shape>& inputs, int num_threads, std::vector<int64_t> images_at_a_time,
            int64_t bands)
      : instructions_(instructions), outputs_(outputs), num_inputs_(static_cast<int>(inputs.size())) {
    steps_.num_threads = num_threads;
    steps_.images_at_a_time = std::move(images_at_a_time);
    steps_.bands = bands;
    for (const Shape& shape : inputs) {
      values_.push_back({shape, static_cast<int>(steps_.storages.size()), 0});
      steps_.storages.push_back({0, static_cast<int>(steps_.storages.size())});
    }
    values_.resize(inputs.size() + instructions.size());
    parts_.resize(instructions.size());
    is_copy_saved_.resize(instructions.size(), false);
  }

  std::shared_ptr<const Schedule> schedule() {
    place_copies();
    for (size_t i = 0; i < instructions_.size(); ++i)
      if (instructions_[i].operation == Operation::kRoom) make_room(i);
    for (size_t i = 0; i < instructions_.size(); ++i)
      if (!add(i)) return nullptr;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Value& value = values_[static_cast<size_t>(outputs_[i])];
      Storage& storage = steps_.storages[static_cast<size_t>(value.storage)];
      if (storage.memory >= 0 || value.offset != 0 || value.shape.num_floats() != storage.size)
        throw std::invalid_argument("outputs of a sequence have memory of their own");
      storage.memory = num_inputs_ + static_cast<int>(i);
      steps_.outputs.push_back(value.shape);
    }
    steps_.num_memories = num_inputs_ + static_cast<int>(outputs_.size());
    return std::make_shared<const Schedule>(steps_);
  }

 private:
  struct Value {
    Shape shape;
    int storage;
    int64_t offset;  // start within the storage, in elements
  };
  /// Where a result is written: channels of a concat buffer (room in the code); -1: memory of its own.
  struct Part {
    int room = -1;
    int64_t first_channel = 0;
  };
  const Shape& shape(int value) const { return values_[static_cast<size_t>(value)].shape; }

  Use use(int value, int64_t further = 0) const {
    if (value < 0) return {};
    const auto& [shape, storage, offset] = values_[static_cast<size_t>(value)];
    const bool is_cut = shape.rank > 1;  // otherwise it is one row
    const int64_t bytes = bytes_of(shape.element);
    return {storage, (offset + further) * bytes, is_cut ? shape.sizes[0] : 1, shape.strides[0] * bytes};
  }

  Value& result(size_t instruction) { return values_[static_cast<size_t>(num_inputs_) + instruction]; }

  /// The instruction whose memory holds a value; -1 for an input.
  int owner(int value) const {
    while (value >= num_inputs_) {
      const Instruction& of = instructions_[static_cast<size_t>(value - num_inputs_)];
      const bool is_alias = of.operation == Operation::kSame || of.operation == Operation::kView ||
                            of.operation == Operation::kSlice;
      if (!is_alias && of.room < 0) return value - num_inputs_;
      value = is_alias ? of.in : of.room;
    }
    return -1;
  }

  /// Elides copies into a concat buffer of values made in this sequence: they are written to the buffer in
  /// the first place, and other readers find them there. Not for outputs, not for values that a view or a
  /// product reads as a tensor without gaps, and not into two buffers.
  void place_copies() {
    std::vector<bool> is_bound(instructions_.size(), false);
    const auto bind = [&](int value) {
      const int of = owner(value);
      if (of >= 0) is_bound[static_cast<size_t>(of)] = true;
    };
    for (const int output : outputs_) bind(output);
    for (const Instruction& each : instructions_)
      if (each.operation == Operation::kView || each.operation == Operation::kLinear) bind(each.in);
    for (size_t i = 0; i < instructions_.size(); ++i) {
      const Instruction& copy = instructions_[i];
      if (copy.operation != Operation::kPointwise || copy.pointwise != Pointwise::kActivate ||
          copy.epilogue.activation != Activation::kNone || copy.room < 0 || copy.types.result)
        continue;
      const bool is_there =
          copy.room < num_inputs_ ||  // an input exists before any task
          instructions_[static_cast<size_t>(copy.room - num_inputs_)].operation == Operation::kRoom;
      const int of = owner(copy.in);
      if (!is_there || of < 0 || is_bound[static_cast<size_t>(of)] || of == owner(copy.room)) continue;
      const bool is_whole =
          copy.in == num_inputs_ + of ||
          instructions_[static_cast<size_t>(copy.in - num_inputs_)].operation == Operation::kSame;
      if (!is_whole || instructions_[static_cast<size_t>(of)].operation == Operation::kLinear) continue;
      parts_[static_cast<size_t>(of)] = {copy.room, copy.first_channel};
      is_bound[static_cast<size_t>(of)] = is_copy_saved_[i] = true;
    }
  }

  /// Allocates a concat buffer, or its part of another one. Enclosing buffers come first.
  void make_room(size_t instruction) {
    const std::vector<int64_t>& sizes = instructions_[instruction].sizes;
    if (result(instruction).shape.rank > 0) return;
    if (sizes.size() != kImageRank) throw std::invalid_argument("a room is an image");
    const Element element = instructions_[instruction].types.result.value_or(Element::kFloat32);
    Shape shape = channels_last(sizes[0], sizes[1], sizes[2], sizes[3], element);
    const Part part = parts_[instruction];
    if (part.room < 0) {
      fresh(instruction, shape);
      return;
    }
    const int of = owner(part.room);
    if (of >= 0) make_room(static_cast<size_t>(of));
    const Value& whole = values_[static_cast<size_t>(part.room)];
    Call call{};
    call.result = shape;
    call.given.out_channels = shape.sizes[1];
    const int64_t first = write_into(call, whole.shape, part.first_channel);
    shape.strides = whole.shape.strides;
    result(instruction) = {shape, whole.storage, whole.offset + first};
  }

  void fresh(size_t instruction, const Shape& shape) {
    result(instruction) = {shape, static_cast<int>(steps_.storages.size()), 0};
    steps_.storages.push_back({shape.num_floats(), -1});
  }

  /// Adds the task of an instruction, and its result. False if an operand's layout is not supported.
  bool add(size_t instruction) {
    const Instruction& given = instructions_[instruction];
    const Shape* const other = given.other < 0 ? nullptr : &shape(given.other);
    switch (given.operation) {
      case Operation::kRoom:
        return true;  // already there
      case Operation::kSame:
        result(instruction) = values_[static_cast<size_t>(given.in)];
        return true;
      case Operation::kView:
        return view(given, result(instruction));
      case Operation::kSlice:
        slice(given, result(instruction));
        return true;
      default:
        break;
    }
    std::optional<Call> call = call_of(given, shape(given.in), other);
    if (!call) return false;
    if (given.packed >= 0) {
      const size_t size = packed_size(weight_layout(call->given));
      if (!shape(given.packed).is_contiguous() || shape(given.packed).size() != static_cast<int64_t>(size))
        throw std::invalid_argument("the packed weight has another size");
    }
    Step step;
    step.work = [&given](const Convolution& of, int count) { return work_of(given, of, count); };
    step.out = place_result(instruction, *call);
    step.given = call->given;
    if (is_copy_saved_[instruction] || step.work(step.given, 1).is_empty()) return true;
    step.in = use(given.in);
    step.packed = use(given.packed);
    step.packed.count = 0;
    step.other = use(given.other);
    steps_.all.push_back(std::move(step));
    return true;
  }

  /// Places the result of a call, in memory of its own or in channels of a concat buffer.
  Use place_result(size_t instruction, Call& call) {
    const Instruction& given = instructions_[instruction];
    const bool is_part = given.room < 0 && parts_[instruction].room >= 0;
    const Part at = is_part ? parts_[instruction] : Part{given.room, given.first_channel};
    if (at.room < 0) {
      fresh(instruction, call.result);
      return use(num_inputs_ + static_cast<int>(instruction));
    }
    Value made = values_[static_cast<size_t>(at.room)];  // a write into a concat buffer returns the buffer
    const int64_t first = write_into(call, made.shape, at.first_channel);
    const Use out = use(at.room, first);
    if (is_part) {
      made.shape.sizes[1] = call.result.sizes[1];
      made.offset += first;
    }
    result(instruction) = made;
    return out;
  }

  void slice(const Instruction& given, Value& part) {
    part = values_[static_cast<size_t>(given.in)];
    Shape& shape = part.shape;
    const int64_t count = given.sizes.size() == 1 ? given.sizes[0] : -1;
    const size_t axis = is_of_rows(shape) ? shape.rank - 1 : 1;
    if (!(is_of_rows(shape) || shape.rank == kImageRank) || count < 0 || given.first_channel < 0 ||
        given.first_channel + count > shape.sizes[axis])
      throw std::invalid_argument("a value has no such channels");
    shape.sizes[axis] = count;
    part.offset += given.first_channel * shape.strides[axis];
  }

  bool view(const Instruction& given, Value& seen) {
    const Shape& from = shape(given.in);
    Shape to;
    to.element = from.element;
    to.rank = given.sizes.size();
    if (to.rank > kMostAxes) return false;
    int64_t known = 1;
    for (const int64_t size : given.sizes) known *= size < 0 ? 1 : size;
    for (size_t i = 0; i < to.rank; ++i)
      to.sizes[i] = given.sizes[i] < 0 ? from.size() / std::max<int64_t>(known, 1) : given.sizes[i];
    lie_contiguously(to);
    if (to.size() != from.size()) throw std::invalid_argument("a view has as many elements");
    if (!from.is_contiguous() && !from.is_empty()) return false;
    seen = values_[static_cast<size_t>(given.in)];
    seen.shape = to;
    return true;
  }

  const std::vector<Instruction>& instructions_;
  const std::vector<int>& outputs_;
  int num_inputs_;
  std::vector<Value> values_;
  std::vector<Part> parts_;          // by instruction
  std::vector<bool> is_copy_saved_;  // whether an instruction's copy is elided
  Steps steps_;
};

Sequence::Sequence(int num_inputs, std::vector<Instruction> instructions, std::vector<int> outputs)
    : num_inputs_(num_inputs), instructions_(std::move(instructions)), outputs_(std::move(outputs)) {
  int known = num_inputs;
  const auto check = [&known](int value, bool is_needed) {
    if (value >= known || (is_needed && value < 0))
      throw std::invalid_argument("a sequence reads a value that is not there");
  };
  for (const Instruction& each : instructions_) {
    const Operation operation = each.operation;
    check(each.in, operation != Operation::kRoom);
    check(each.packed, operation == Operation::kConvolve || operation == Operation::kLinear);
    check(each.other, false);
    check(each.room, false);
    ++known;
  }
  for (const int value : outputs_) check(value, true);
}

std::shared_ptr<const Schedule> Sequence::schedule(const std::vector<Shape>& inputs, int num_threads) const {
  if (static_cast<int>(inputs.size()) != num_inputs_)
    throw std::invalid_argument("a sequence is given another number of inputs");
  return Scheduler(instructions_, outputs_, inputs, num_threads, images_at_a_time_, bands_).schedule();
}

}  // namespace rlopt::kernels
