// Device probe: measures what this machine's processor can do, in well under two seconds.
#pragma once

#include <vector>

namespace rlopt {

/// Rates of all threads together at one working-set size.
struct BandwidthPoint {
  double bytes = 0;               // working set of one thread: everything it reads and writes
  double copy_bytes_per_us = 0;   // read and written by memcpy
  double triad_bytes_per_us = 0;  // read and written by a[i] = b[i] + s * c[i]
};

struct CpuProbe {
  std::vector<BandwidthPoint> bandwidth;  // from L1 to main memory
  std::vector<double> flops_per_us;       // float32 multiply-adds (two each) with 1, 2, ... threads
  std::vector<double> stream_per_us;      // triad bytes in main memory with 1, 2, ... threads
  double seconds = 0;                     // duration of the probe
};

/// Probes with 1 to `num_threads` threads (at most 64); each quantity is the best of a few short runs,
/// because other processes can only make it look worse.
CpuProbe probe_cpu(int num_threads);

}  // namespace rlopt
