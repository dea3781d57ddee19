// How many images of a batch go through calls at a time.
//
// With few, what a call leaves is still in the thread's cache when the next one reads it, and each thread
// goes on without waiting for others; but weights are read anew for each of them. Early convolutions of a
// network have large images and small weights, late ones the other way round.
#pragma once

#include <vector>

#include "kernels/schedule.h"

namespace rlopt::kernels {

/// Calls that so many images go through at a time, in each thread; 0: threads share each call on all.
struct Phase {
  size_t first, last;
  int64_t images;
};

/// Into how many images a batch can be cut: what the first axes of all operands have in common.
int64_t images_of(const std::vector<Step>& steps);

/// A call on so many images of `all`.
Convolution with_images(Convolution given, int64_t images, int64_t all);

/// Those that take the least time, one after the other; or those that are asked for.
std::vector<Phase> phases_of(const Steps& steps, int64_t images);

}  // namespace rlopt::kernels
