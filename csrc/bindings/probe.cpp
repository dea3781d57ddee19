// The device probe.
#include "cost/probe.h"

#include "bindings/bind.h"

namespace rlopt {

void bind_probe(py::module_& m) {
  m.def(
      "probe_cpu",
      [](int num_threads) {
        const CpuProbe found = without_gil([&] { return probe_cpu(num_threads); });
        py::list bandwidth;
        for (const BandwidthPoint& point : found.bandwidth) {
          py::dict entry;
          entry["bytes"] = point.bytes;
          entry["copy_bytes_per_us"] = point.copy_bytes_per_us;
          entry["triad_bytes_per_us"] = point.triad_bytes_per_us;
          bandwidth.append(entry);
        }
        py::dict result;
        result["bandwidth"] = bandwidth;
        result["flops_per_us"] = found.flops_per_us;
        result["stream_per_us"] = found.stream_per_us;
        result["seconds"] = found.seconds;
        return result;
      },
      py::arg("num_threads"),
      "Bandwidth at working sets from cache to memory, and arithmetic and streaming rates with 1, 2, 4, ...\n"
      "threads (0 where a number of threads was not tried). Takes under a second on a quiet machine.");
}

}  // namespace rlopt
