// Batch chunks: how many images of a batch go through a run of calls (a phase in the code) at a time.
//
// With few images, the output of a call is still in the thread's cache when the next call reads it, and no
// thread waits for the others; but weights are read again for each chunk. Early convolutions of a network
// have large images and small weights, late ones the opposite.
#pragma once

#include <vector>

#include "kernels/schedule.h"

namespace rlopt::kernels {

/// A run of calls with the same number of images at a time in each thread; 0: all threads share each call on
/// the whole batch.
struct Phase {
  size_t first, last;
  int64_t images;
};

/// The number of images along which a batch can be cut: what the first axes of all operands have in common.
int64_t images_of(const std::vector<Step>& steps);

/// A call on this many images, out of `all`.
Convolution with_images(Convolution given, int64_t images, int64_t all);

/// The phases that take the least time, in order, or those that the caller requests.
std::vector<Phase> phases_of(const Steps& steps, int64_t images);

}  // namespace rlopt::kernels
