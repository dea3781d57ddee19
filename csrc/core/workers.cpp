#include "core/workers.h"

#include <system_error>

namespace rlopt {

Workers::Workers(int num_threads) {
  for (int i = 1; i < num_threads; ++i) {
    try {
      threads_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error&) {
      return;  // the system allows no more threads: continue with these
    }
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(int count, const std::function<void(int)>& job) {
  {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    count_ = count;
    busy_ = static_cast<int>(threads_.size());
    error_ = nullptr;
    ++round_;
  }
  begin_.notify_all();
  take_jobs(0);
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return busy_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

void Workers::take_jobs(int thread) {
  for (int i = thread; i < count_; i += num_threads()) {
    try {
      (*job_)(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

void Workers::work(int thread) {
  uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return is_closing_ || round_ != seen; });
      if (is_closing_) return;
      seen = round_;
    }
    take_jobs(thread);
    {
      const std::lock_guard lock(mutex_);
      --busy_;
    }
    end_.notify_one();
  }
}

}  // namespace rlopt
