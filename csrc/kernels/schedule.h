// The execution plan of a sequence of calls for inputs of some shapes: how many images at a time, in which
// memory, and where the barriers are.
//
// Images of a batch are independent. So where it pays, a thread takes a batch chunk through many calls by
// itself: intermediates stay in its cache, and there is no barrier. See phases.h. With a single image, some
// pairs of calls are fused by row tiles: see bands.h.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/shapes.h"

namespace rlopt::kernels {

/// Location of an operand, in bytes.
struct Use {
  int storage = -1;    // -1: absent
  int64_t offset = 0;  // start within the storage
  int64_t count = 0;   // size of the first axis, along which a batch is cut; 0: shared by all images
  int64_t stride = 0;  // along that axis
};

/// Memory that values with other lifetimes may reuse.
struct Storage {
  int64_t size;     // floats
  int memory = -1;  // of the caller; -1: in the arena
};

/// A call on a whole batch, and how to restrict it to some of its images.
struct Step {
  Convolution given;
  std::function<Work(const Convolution&, int num_threads)> work;
  Use in, packed, other, out;
};

/// A sequence of calls.
struct Steps {
  std::vector<Step> all;
  std::vector<Storage> storages;
  std::vector<Shape> outputs;
  int num_memories = 0;  // of the caller: inputs and outputs
  int num_threads = 1;
  std::vector<int64_t> images_at_a_time;  // per call, cyclically; empty: chosen, see phases.h
  int64_t bands = -1;  // of each pair of calls that can be fused; negative: chosen, see bands.h
};

/// What a sequence does for inputs of some shapes. Immutable.
class Schedule {
 public:
  explicit Schedule(const Steps& steps);

  /// Sizes and strides of the results.
  const std::vector<Shape>& outputs() const { return outputs_; }

  /// Floats of memory needed besides inputs and outputs.
  int64_t arena() const { return arena_; }

  /// Whether threads take batch chunks through some of the calls by themselves.
  bool has_chunks() const;

  /// Images per chunk for each stretch of calls; 0 if threads share each call.
  std::vector<int64_t> images_at_a_time() const;

  /// The number of row tiles (bands.h) of each fused pair of calls, in order.
  std::vector<int64_t> bands() const;

  /// Runs the plan. `memory` has the first element of each input, each output, and the arena. The arena's
  /// first and last cache lines are not used, because they may be shared with memory that other threads
  /// write.
  void run(char* const* memory) const;

 private:
  class Placement;
  struct Place {
    int memory = -1;     // -1: absent
    int64_t offset = 0;  // in bytes, like all below
    int64_t of_chunk = 0, of_thread = 0;
  };
  struct Task {
    Work work;
    Place in, packed, other, out, scratch;
    bool waits = false;  // for a barrier
    // A fused pair of calls, see bands.h: `out` and the fields below are the second one's, `scratch` holds
    // the intermediate, and threads take row tiles by the first counter of turns.
    int64_t bands = 0;  // 0: not a pair
    Work behind;
    Place packed_behind;
    int64_t floats_of_band = 0;  // of each thread's scratch
  };
  struct Stretch {
    size_t first, last;  // tasks
    int64_t images;      // per chunk; 0: threads share each task
    int64_t chunks;
  };
  class Thread;

  std::vector<Task> tasks_;
  std::vector<Stretch> stretches_;
  std::vector<Shape> outputs_;
  int64_t arena_ = 0;
  int num_threads_ = 1;
};

}  // namespace rlopt::kernels
