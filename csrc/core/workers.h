// A thread pool for numbered jobs.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rlopt {

/// A pool of threads that includes the caller.
class Workers {
 public:
  explicit Workers(int num_threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }
  /// Calls job(0) ... job(count - 1), each once; returns when all are done. Rethrows the first exception.
  /// job(i) always runs in thread i % num_threads(), so objects made by one thread are only used by it.
  void run(int count, const std::function<void(int)>& job);

 private:
  void work(int thread);
  void take_jobs(int thread);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<void(int)>* job_ = nullptr;
  int count_ = 0;
  int busy_ = 0;
  uint64_t round_ = 0;
  bool is_closing_ = false;
  std::exception_ptr error_;
};

}  // namespace rlopt
