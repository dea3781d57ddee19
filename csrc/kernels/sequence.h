// A sequence of kernel calls as one call: scheduled once for inputs of some shapes, on preallocated memory,
// in one parallel region.
#pragma once

#include <memory>
#include <vector>

#include "kernels/schedule.h"

namespace rlopt::kernels {

enum class Operation : int {
  kConvolve = 0,
  kPool = 1,
  kLinear = 2,
  kPointwise = 3,
  kRoom = 4,     // a concat buffer: an image whose channels others write
  kSame = 5,     // the same value: a concat buffer after others have written to it, or an image that is split
  kView = 6,     // reshapes
  kSlice = 7,    // a number of channels of an image, or of numbers of rows, from `first_channel` on
  kShuffle = 8,  // shuffles the channels of an image
};
constexpr int kNumOperations = 9;

/// One instruction of a sequence. Values are numbered: inputs first, then the result of each instruction.
struct Instruction {
  Operation operation = Operation::kView;
  int in = -1, packed = -1, other = -1;
  int room = -1;  // concat buffer into whose channels the result is written from `first_channel` on
  int64_t first_channel = 0;
  Window window{};
  int64_t groups = 1;
  Method method = Method::kSums;
  bool is_ceiled = false;
  Pool pool = Pool::kMax;
  Pointwise pointwise = Pointwise::kActivate;
  Epilogue epilogue;
  Types types;                 // a concat buffer is of the result's
  std::vector<int64_t> sizes;  // of a concat buffer or a view; for a slice the number of channels
};

/// The call of an instruction that computes something, on operands of these shapes (`other` may be null).
/// Nothing if an operand's layout is not supported.
std::optional<Call> call_of(const Instruction& given, const Shape& in, const Shape* other);
Work work_of(const Instruction& given, const Convolution& of, int num_threads);

class Sequence {
 public:
  Sequence() = default;

  /// Throws std::invalid_argument for values that do not exist.
  Sequence(int num_inputs, std::vector<Instruction> instructions, std::vector<int> outputs);

  /// Sets how many images of a batch each thread takes through the calls at a time, call by call and repeated
  /// cyclically. If the number is 0 or does not divide the batch, threads share the call. Existing schedules
  /// do not change.
  void take_images(std::vector<int64_t> at_a_time) { images_at_a_time_ = std::move(at_a_time); }

  /// Sets how many row tiles (bands.h) pairs of calls are cut into; if negative, that is chosen. Existing
  /// schedules do not change.
  void take_bands(int64_t count) { bands_ = count; }

  size_t num_outputs() const { return outputs_.size(); }

  /// Returns nothing if an input's layout is not supported. Throws std::invalid_argument for invalid calls,
  /// and for outputs that share memory.
  std::shared_ptr<const Schedule> schedule(const std::vector<Shape>& inputs, int num_threads) const;

 private:
  int num_inputs_ = 0;
  std::vector<Instruction> instructions_;
  std::vector<int> outputs_;
  std::vector<int64_t> images_at_a_time_;
  int64_t bands_ = -1;
};

}  // namespace rlopt::kernels
