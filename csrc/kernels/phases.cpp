#include "kernels/phases.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/job.h"

namespace rlopt::kernels {

namespace {

/// Floats that stay in a core's L2 next to the weights, and in L3 for all threads together.
constexpr double kStayInSecond = 192 << 10, kStayInThird = 4 << 20;

/// Cost of reading or writing a float in L3 or in memory, in multiplications of the direct method. Fitted by
/// hand to convolutional networks of batch 16 on an AMD EPYC (Zen 5).
constexpr double kWaitOfThird = 4, kWaitOfMemory = 12;

/// The same, for reading a float of a weight again for other images.
constexpr double kReadAgain = 6;

/// The same, for a barrier between two calls that all threads share, and for a change of the batch chunks,
/// when other threads have computed some of the images.
constexpr double kBarrier = 5e4, kChange = 3e6;

/// Minimum chunks per thread: otherwise all would wait for one whose core is busy. And the maximum number of
/// chunks of a batch that is tried.
constexpr int64_t kLeastTurns = 2, kMostChunks = 64;

/// Floats that a call reads and writes per image of a batch, without weights.
struct Floats {
  double in, all;
};

Floats floats_of(const Step& step, int64_t images) {
  const Convolution& given = step.given;
  const auto floats = [images](int64_t elements, Element element) {
    return static_cast<double>(elements * bytes_of(element)) / sizeof(float) / static_cast<double>(images);
  };
  const double in = floats(given.images * given.height * given.width * given.channels, given.in_element);
  const double out =
      floats(given.images * given.out_height * given.out_width * given.out_channels, given.out_element);
  return {in, in + out * (step.other.storage < 0 ? 1 : 2)};
}

/// Cost per float if each thread cycles through this many floats, in multiplications.
double wait_of_float(double floats, double threads) {
  if (floats <= kStayInSecond) return 0;
  return floats * threads <= kStayInThird ? kWaitOfThird : kWaitOfMemory;
}

/// Groups consecutive steps with the same number of images.
std::vector<Phase> gathered(const std::vector<int64_t>& images) {
  std::vector<Phase> phases;
  for (size_t i = 0; i < images.size(); ++i) {
    if (i == 0 || images[i] != images[i - 1]) phases.push_back({i, i, images[i]});
    phases.back().last = i + 1;
  }
  return phases;
}

/// Finds the fastest sequence of choices through all steps (dynamic programming).
class Search {
 public:
  Search(const Steps& steps, int64_t images)
      : steps_(steps.all),
        images_(images),
        batch_(static_cast<double>(images)),
        threads_(static_cast<double>(steps.num_threads)) {
    const int64_t least = steps.num_threads == 1 ? 1 : kLeastTurns * steps.num_threads;
    for (int64_t each = 1; each < images; ++each)
      if (images % each == 0 && images / each <= kMostChunks && images / each >= least)
        choices_.push_back(each);
  }

  /// How many images go through each step at a time.
  std::vector<int64_t> run() const {
    std::vector<int64_t> chosen(steps_.size(), 0);
    if (choices_.size() == 1) return chosen;
    // The least time up to a step for each choice, and the preceding choices.
    std::vector<double> least(choices_.size(), 0.0);
    std::vector<std::vector<size_t>> before(steps_.size(), std::vector<size_t>(choices_.size()));
    for (size_t i = 0; i < steps_.size(); ++i) {
      const size_t best = place_of_least(least);
      const Floats floats = floats_of(steps_[i], images_);
      const double change = least[best] + (i == 0 ? 0 : time_of_change(floats));
      for (size_t at = 0; at < choices_.size(); ++at) {
        before[i][at] = change < least[at] ? best : at;
        least[at] = std::min(change, least[at]) + time_of(steps_[i], floats, choices_[at]);
      }
    }
    size_t at = place_of_least(least);
    for (size_t i = steps_.size(); i-- > 0; at = before[i][at]) chosen[i] = choices_[at];
    return chosen;
  }

 private:
  static size_t place_of_least(const std::vector<double>& of) {
    return static_cast<size_t>(std::min_element(of.begin(), of.end()) - of.begin());
  }

  /// Before a step: its input has to be written to and read from a more distant cache.
  double time_of_change(const Floats& floats) const {
    const double moved = batch_ / threads_ * floats.in;
    return kChange + 2 * moved * std::max(kWaitOfThird, wait_of_float(moved, threads_));
  }

  double time_of(const Step& step, const Floats& floats, int64_t at_a_time) const {
    const double reads = batch_ * floats.all;
    if (at_a_time == 0) {
      const Work work = step.work(step.given, 1);
      const double waits = reads * wait_of_float(reads / threads_, threads_);
      return (work.time + waits) / threads_ + kReadOfWeight * work.weights + kBarrier;
    }
    const auto images = static_cast<double>(at_a_time), chunks = batch_ / images;
    const Work work = step.work(with_images(step.given, at_a_time, images_), 1);
    const double waits = reads * wait_of_float(images * floats.all, threads_);
    const double turns = std::ceil(chunks / threads_);  // of the thread with the most chunks
    const double again = (turns - 1) * kReadAgain * work.weights;
    return (chunks * work.time + waits) * turns / chunks + kReadOfWeight * work.weights + again;
  }

  const std::vector<Step>& steps_;
  int64_t images_;
  double batch_, threads_;
  std::vector<int64_t> choices_{0};
};

}  // namespace

int64_t images_of(const std::vector<Step>& steps) {
  int64_t images = 0;
  for (const Step& step : steps)
    for (const int64_t count : {step.in.count, step.other.count, step.out.count})
      images = std::gcd(images, count);
  return images;
}

Convolution with_images(Convolution given, int64_t images, int64_t all) {
  if (given.images % all == 0)
    given.images = given.images / all * images;
  else  // of rows
    given.width = given.out_width = given.width / all * images;
  return given;
}

std::vector<Phase> phases_of(const Steps& steps, int64_t images) {
  const std::vector<int64_t>& wanted = steps.images_at_a_time;
  if (wanted.empty()) return gathered(Search(steps, images).run());
  std::vector<int64_t> taken;
  for (size_t i = 0; i < steps.all.size(); ++i) {
    const int64_t each = wanted[i % wanted.size()];
    taken.push_back(each > 0 && images % each == 0 ? each : 0);
  }
  return gathered(taken);
}

}  // namespace rlopt::kernels
