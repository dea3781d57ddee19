// A clock for time budgets that does not count time spent waiting for a processor.
#pragma once

#include <chrono>

namespace rlopt {

/// Wall time since construction, minus the time in which the thread was runnable but not running. Budgets in
/// it buy the same work on a busy machine. Falls back to wall time if the system does not record waiting.
/// Read it only from the thread that made it.
class OwnClock {
 public:
  OwnClock();
  double elapsed_ms() const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_;
  double waited_before_ms_;
  mutable double waited_ms_ = 0;
  mutable double next_reading_ms_;  // wall time
};

}  // namespace rlopt
