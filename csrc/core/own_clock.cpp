#include "core/own_clock.h"

#include <cstdio>
#include <memory>

namespace rlopt {

namespace {

constexpr double kReadingEveryMs = 5;  // a reading takes some ten microseconds

/// This thread's waiting time according to the kernel; 0 if unavailable.
double waited_ms() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/thread-self/schedstat", "r"),
                                                   std::fclose);
  unsigned long long ran = 0, waited = 0;  // NOLINT: what scanf takes
  if (file == nullptr || std::fscanf(file.get(), "%llu %llu", &ran, &waited) != 2) return 0;
  return static_cast<double>(waited) / 1e6;
}

}  // namespace

OwnClock::OwnClock()
    : start_(Clock::now()), waited_before_ms_(waited_ms()), next_reading_ms_(kReadingEveryMs) {}

double OwnClock::elapsed_ms() const {
  const double wall_ms = std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  if (wall_ms >= next_reading_ms_) {
    waited_ms_ = waited_ms() - waited_before_ms_;
    next_reading_ms_ = wall_ms + kReadingEveryMs;
  }
  return wall_ms - waited_ms_;
}

}  // namespace rlopt
