// Counts the bytes that torch's CPU allocator has handed out, on every thread, and the most that were out at once.
// Built and installed by planner/launch/counting_allocator.py; a profiler misses what communication threads release.
// Left out: what gloo's own threads allocate, and what a thread allocates while it is told not to count: gloo stages
// copies of what it gathers and scatters, where NCCL works in place.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

static std::mutex lock;
static std::unordered_map<void*, int64_t> blocks;
static int64_t alive = 0;
static int64_t peak = 0;
static thread_local bool counting = true;

static bool is_gloo_thread() {
  static thread_local const bool found = [] {
    char name[32] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return std::strncmp(name, "pt_gloo", 7) == 0;
  }();
  return found;
}

static void drop(void* block) {
  {
    std::lock_guard<std::mutex> held(lock);
    auto at = blocks.find(block);
    if (at != blocks.end()) {
      alive -= at->second;
      blocks.erase(at);
    }
  }
  c10::free_cpu(block);
}

struct Counting final : at::Allocator {
  at::DataPtr allocate(size_t size) override {
    void* block = c10::alloc_cpu(size);
    if (block && counting && !is_gloo_thread()) {
      std::lock_guard<std::mutex> held(lock);
      blocks[block] = static_cast<int64_t>(size);
      alive += static_cast<int64_t>(size);
      peak = std::max(peak, alive);
    }
    return {block, block, &drop, c10::Device(c10::DeviceType::CPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t size) const override { default_copy_data(to, from, size); }
};

extern "C" {
void install() {
  static Counting allocator;
  c10::SetCPUAllocator(&allocator, 255);
}
void pause_this_thread() { counting = false; }
void resume_this_thread() { counting = true; }
int64_t alive_bytes() {
  std::lock_guard<std::mutex> held(lock);
  return alive;
}
int64_t take_peak_bytes() {
  std::lock_guard<std::mutex> held(lock);
  int64_t seen = peak;
  peak = alive;
  return seen;
}
}
