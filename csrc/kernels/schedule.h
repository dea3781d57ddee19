// A sequence of calls for inputs of some shapes, as it runs: which images at a time, in which memory, and
// where threads wait for each other.
//
// Images of a batch do not know of each other. So where it pays a thread takes some of them through many
// calls by itself: what it computes stays in its cache, and nobody waits for anybody. See phases.h.
// One image goes through some pairs of calls in bands of rows: see bands.h.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/shapes.h"

namespace rlopt::kernels {

/// Where something lies, in bytes.
struct Use {
  int storage = -1;    // -1: there is none
  int64_t offset = 0;  // where it begins there
  int64_t count = 0;   // of its first axis, along which a batch is cut; 0: all images use the same
  int64_t stride = 0;  // along that axis
};

/// Memory that what lives at other times may share.
struct Storage {
  int64_t size;     // floats
  int memory = -1;  // of the caller; -1: of the arena
};

/// A call on a whole batch, and how it is one on some of its images.
struct Step {
  Convolution given;
  std::function<Work(const Convolution&, int num_threads)> work;
  Use in, packed, other, out;
};

/// Calls that follow on each other.
struct Steps {
  std::vector<Step> all;
  std::vector<Storage> storages;
  std::vector<Shape> outputs;
  int num_memories = 0;  // of the caller: inputs and outputs
  int num_threads = 1;
  std::vector<int64_t> images_at_a_time;  // of call after call, over and over; empty: chosen, see phases.h
};

/// What a sequence does with inputs of some shapes. It does not change.
class Schedule {
 public:
  explicit Schedule(const Steps& steps);

  /// Sizes and strides of the results.
  const std::vector<Shape>& outputs() const { return outputs_; }

  /// Floats that it needs beside inputs and outputs.
  int64_t arena() const { return arena_; }

  /// Whether threads take images through some of the calls by themselves.
  bool has_chunks() const;

  /// How many images a thread takes at a time, for each stretch of calls; 0 where threads share each call.
  std::vector<int64_t> images_at_a_time() const;

  /// Into how many bands the pairs of calls are cut of which that is done (bands.h), in order.
  std::vector<int64_t> bands() const;

  /// Computes it. `memory` has the first element of each input, of each output, and of the arena. Its first
  /// and last cache line are left alone, which it may share with memory that other threads write.
  void run(char* const* memory) const;

 private:
  class Placement;
  struct Place {
    int memory = -1;     // -1: there is none
    int64_t offset = 0;  // in bytes, as all of these
    int64_t of_chunk = 0, of_thread = 0;
  };
  struct Task {
    Work work;
    Place in, packed, other, out, scratch;
    bool waits = false;  // for what other threads did before
    // A pair of calls, see bands.h: `out` and what is below is the second one's, `scratch` holds what lies
    // between, and threads take bands by the first counter of turns.
    int64_t bands = 0;  // 0: there is no second one
    Work behind;
    Place packed_behind;
    int64_t floats_of_band = 0;  // of scratch of each thread
  };
  struct Stretch {
    size_t first, last;  // tasks
    int64_t images;      // of a chunk; 0: threads share each task
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
