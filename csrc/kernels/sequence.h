// Calls of kernels that follow on each other, as one call: scheduled once for inputs of some shapes, on
// memory that was shared out before, in one parallel region.
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
  kRoom = 4,     // an image whose channels others write
  kSame = 5,     // the same value: a room that others have written into, an image that is split
  kView = 6,     // other sizes
  kSlice = 7,    // so many channels of an image, or numbers of rows, from `first_channel` on
  kShuffle = 8,  // of the channels of an image
};
constexpr int kNumOperations = 9;

/// One of a sequence. Values are numbered: inputs first, then the result of each instruction.
struct Instruction {
  Operation operation = Operation::kView;
  int in = -1, packed = -1, other = -1;
  int room = -1;  // an image into whose channels the result is written from `first_channel` on
  int64_t first_channel = 0;
  Window window{};
  int64_t groups = 1;
  Method method = Method::kSums;
  bool is_ceiled = false;
  Pool pool = Pool::kMax;
  Pointwise pointwise = Pointwise::kActivate;
  Epilogue epilogue;
  std::vector<int64_t> sizes;  // of a room or a view; of a slice the number of channels
};

class Sequence {
 public:
  Sequence() = default;

  /// Throws std::invalid_argument for numbers of values that are not there.
  Sequence(int num_inputs, Element element, std::vector<Instruction> instructions, std::vector<int> outputs);

  /// Has each thread take so many images of a batch through the calls, in their order and over and over;
  /// where that is no part of a batch, and for 0, threads share a call. Schedules that were made stay as they
  /// are.
  void take_images(std::vector<int64_t> at_a_time) { images_at_a_time_ = std::move(at_a_time); }

  size_t num_outputs() const { return outputs_.size(); }

  /// Nothing where an input does not lie as it is read. Throws std::invalid_argument for what is no call,
  /// and for outputs that share memory.
  std::shared_ptr<const Schedule> schedule(const std::vector<Shape>& inputs, int num_threads) const;

 private:
  int num_inputs_ = 0;
  Element element_ = Element::kFloat32;  // of all images; packed weights are of floats
  std::vector<Instruction> instructions_;
  std::vector<int> outputs_;
  std::vector<int64_t> images_at_a_time_;
};

}  // namespace rlopt::kernels
