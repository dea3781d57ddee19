// Calls of kernels that follow on each other, as one call: scheduled once for inputs of some shapes, on
// memory that was shared out before, in one parallel region.
#pragma once

#include <memory>
#include <vector>

#include "kernels/shapes.h"

namespace rlopt::kernels {

enum class Operation : int {
  kConvolve = 0,
  kPool = 1,
  kLinear = 2,
  kPointwise = 3,
  kRoom = 4,     // an image whose channels others write
  kSame = 5,     // the same value: a room that others have written into, an image that is split
  kView = 6,     // other sizes
  kSlice = 7,    // so many channels of an image, from `first_channel` on
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

/// What a sequence does with inputs of some shapes. It does not change.
class Schedule {
 public:
  /// Sizes and strides of the results.
  const std::vector<Shape>& outputs() const { return outputs_; }

  /// Floats that it needs beside inputs and outputs.
  int64_t arena() const { return arena_; }

  /// Computes it. `memory` has the first element of each input, of each output, and of the arena. Its first
  /// and last cache line are left alone, which it may share with memory that other threads write.
  void run(char* const* memory) const;

 private:
  friend class Scheduler;
  struct Place {
    int memory = -1;     // -1: there is none
    int64_t offset = 0;  // in bytes
  };
  struct Task {
    Work work;
    Place in, packed, other, out, scratch;
    bool waits = false;  // for what other threads did before
  };
  std::vector<Task> tasks_;
  std::vector<Shape> outputs_;
  int64_t arena_ = 0;
  int num_threads_ = 1;
};

class Sequence {
 public:
  Sequence() = default;

  /// Throws std::invalid_argument for numbers of values that are not there, and for outputs that share
  /// memory.
  Sequence(int num_inputs, Element element, std::vector<Instruction> instructions, std::vector<int> outputs);

  size_t num_outputs() const { return outputs_.size(); }

  /// Nothing where an input does not lie as it is read. Throws std::invalid_argument for what is no call.
  std::shared_ptr<const Schedule> schedule(const std::vector<Shape>& inputs, int num_threads) const;

 private:
  int num_inputs_ = 0;
  Element element_ = Element::kFloat32;  // of all images; packed weights are of floats
  std::vector<Instruction> instructions_;
  std::vector<int> outputs_;
};

}  // namespace rlopt::kernels
