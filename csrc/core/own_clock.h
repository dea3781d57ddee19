// A clock for budgets that stands still while other processes have the processor.
#pragma once

#include <chrono>

namespace rlopt {

/// Wall time since the clock was made, without that in which its thread was ready to run and did not. Budgets
/// in it buy the same work on a busy machine. Plain wall time where the system does not count waiting. To be
/// read by the thread that made it.
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
