#include "tables.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace octavo_rocksdb {

namespace {

// Reads that are not repeated leave the kernel's page cache after so many bytes.
constexpr uint64_t kDropBytes = 1 << 20;

// The most queues that wait for a batch. Each has an I/O ring of 24 KiB.
constexpr size_t kQueuesMax = 32;

int64_t ModifiedNs(const struct stat& stat) {
  return static_cast<int64_t>(stat.st_mtim.tv_sec) * 1000000000 + stat.st_mtim.tv_nsec;
}

bool SameFile(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino &&
         one.st_size == other.st_size && ModifiedNs(one) == ModifiedNs(other);
}

// The cache of this process.
struct Process {
  pid_t pid = 0;
  octavo_cache* cache = nullptr;
  Settings settings;
  std::map<std::string, Tables*> partitions;
};

std::mutex process_mutex;
// Never destroyed: see `Tables`.
Process* process = nullptr;

octavo_cache* NewCache(const Settings& settings) {
  octavo_cache_config config = {};
  config.size = sizeof config;
  config.memory_max_bytes = settings.memory_max_bytes;
  config.io_engine = settings.io_engine.c_str();
  config.numa = settings.numa.c_str();
  octavo_cache* cache = nullptr;
  return octavo_cache_new(&config, &cache) == OCTAVO_OK ? cache : nullptr;
}

octavo_partition* NewPartition(octavo_cache* cache, const Settings& settings) {
  octavo_partition_config config = {};
  config.size = sizeof config;
  config.policy = settings.policy.c_str();
  config.page_bytes = static_cast<uint32_t>(std::min<uint64_t>(settings.page_bytes, UINT32_MAX));
  config.max_bytes = settings.partition_max_bytes;
  config.read_ahead_max_bytes = settings.read_ahead_bytes;
  octavo_partition* partition = nullptr;
  const int code =
      octavo_partition_new(cache, settings.partition.c_str(), &config, &partition);
  return code == OCTAVO_OK ? partition : nullptr;
}

// An object has two descriptors: for direct I/O, and for the file's last bytes.
constexpr uint64_t kTableDescriptors = 2;

// Idle tables take at most a quarter of the process's descriptors.
uint64_t IdleMax(uint64_t asked) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return asked;
  return std::min<uint64_t>(asked, limit.rlim_cur / 4 / kTableDescriptors);
}

}  // namespace

Table::Table(octavo_object* opened, std::string name, const struct stat& stat)
    : object(opened),
      len(octavo_object_len(opened)),
      path(std::move(name)),
      device(stat.st_dev),
      inode(stat.st_ino),
      modified_ns(ModifiedNs(stat)) {}

Table::~Table() {
  octavo_object_abandon(object, nullptr);
  const int file = file_.load(std::memory_order_relaxed);
  if (file >= 0) close(file);
}

// Returns a descriptor, or a negative number of an error.
int Table::File() {
  // Acquire: pairs with the store below; the descriptor is open.
  const int open_already = file_.load(std::memory_order_acquire);
  if (open_already >= 0) return open_already;
  std::lock_guard<std::mutex> lock(file_mutex_);
  if (file_.load(std::memory_order_relaxed) >= 0) return file_.load(std::memory_order_relaxed);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return -errno;
  struct stat stat;
  const bool is_this = fstat(file, &stat) == 0 && stat.st_dev == device && stat.st_ino == inode;
  if (!is_this) {
    close(file);
    return -ESTALE;
  }
  posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);
  // Release: pairs with the load above.
  file_.store(file, std::memory_order_release);
  return file;
}

int64_t Table::ReadFile(uint64_t offset, char* buffer, size_t count, bool once) {
  const int file = File();
  if (file < 0) return file;
  size_t done = 0;
  while (done < count) {
    const off_t at = static_cast<off_t>(offset + done);
    const ssize_t now = pread(file, buffer + done, count - done, at);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return -errno;
    if (now == 0) break;
    done += static_cast<size_t>(now);
  }
  const uint64_t end = (offset + done) / kDropBytes * kDropBytes;
  const uint64_t start = offset / kDropBytes * kDropBytes;
  if (once && end > start) {
    const off_t length = static_cast<off_t>(end - start);
    posix_fadvise(file, static_cast<off_t>(start), length, POSIX_FADV_DONTNEED);
  }
  return static_cast<int64_t>(done);
}

Tables* Tables::Of(const Settings& settings, std::string* error) {
  std::lock_guard<std::mutex> lock(process_mutex);
  // In a child of fork, the parent's cache cannot be used.
  if (process == nullptr || process->pid != getpid()) {
    octavo_cache* cache = NewCache(settings);
    if (cache == nullptr) {
      *error = octavo_error_message();
      return nullptr;
    }
    process = new Process{getpid(), cache, settings, {}};
  }
  if (!process->settings.SameCache(settings)) {
    *error = "this process has a cache already, with another memory_max, io_engine or numa";
    return nullptr;
  }
  Tables*& tables = process->partitions[settings.partition];
  if (tables == nullptr) {
    octavo_partition* partition = NewPartition(process->cache, settings);
    if (partition == nullptr) {
      *error = octavo_error_message();
      return nullptr;
    }
    tables = new Tables(process->cache, partition, settings);
  }
  if (!tables->settings_.SamePartition(settings)) {
    *error = "there is a partition \"" + settings.partition + "\" already, with other settings";
    return nullptr;
  }
  return tables;
}

// Returns the table of a file, if it is known and was not changed. `mutex_` is held.
Table* Tables::Known(const struct stat& stat) {
  const auto found = known_.find(Key(stat.st_dev, stat.st_ino));
  if (found == known_.end()) return nullptr;
  Table* table = found->second;
  const bool is_same = table->len == static_cast<uint64_t>(stat.st_size) &&
                       table->modified_ns == ModifiedNs(stat);
  return is_same ? table : nullptr;
}

Table* Tables::Open(const std::string& path, std::string* error) {
  struct stat stat;
  if (::stat(path.c_str(), &stat) != 0 || !S_ISREG(stat.st_mode)) {
    *error = "it is no regular file";
    return nullptr;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Table* table = Known(stat);
    if (table != nullptr) {
      if (table->users_++ == 0) idle_.erase(table->idle_);
      return table;
    }
  }
  Change(stat);
  const uint32_t flags = OCTAVO_OPEN_READ_ONLY | OCTAVO_OPEN_NO_LOCK;
  octavo_object* object = nullptr;
  int code = octavo_open(partition_, path.c_str(), flags, &object);
  if (code == OCTAVO_EOPEN && octavo_error_errno() == EMFILE) {
    Shrink(0);
    code = octavo_open(partition_, path.c_str(), flags, &object);
  }
  if (code != OCTAVO_OK) {
    *error = octavo_error_message();
    return nullptr;
  }
  std::unique_ptr<Table> table(new Table(object, path, stat));
  struct stat now;
  const bool is_same = ::stat(path.c_str(), &now) == 0 && SameFile(stat, now) &&
                       table->len == static_cast<uint64_t>(stat.st_size);
  if (!is_same) {
    *error = "it is being changed";
    return nullptr;
  }
  table->users_ = 1;
  std::lock_guard<std::mutex> lock(mutex_);
  Table* other = Known(stat);
  if (other != nullptr) {
    // Another thread was faster.
    if (other->users_++ == 0) idle_.erase(other->idle_);
    return other;
  }
  known_[Key(stat.st_dev, stat.st_ino)] = table.get();
  counters.opened.fetch_add(1, std::memory_order_relaxed);
  return table.release();
}

void Tables::Close(Table* table) {
  bool is_known;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--table->users_ > 0) return;
    is_known = table->known_;
    if (is_known) table->idle_ = idle_.insert(idle_.end(), table);
  }
  if (!is_known) {
    delete table;
    return;
  }
  Shrink(IdleMax(settings_.idle_tables_max));
}

void Tables::Shrink(size_t most) {
  for (;;) {
    Table* oldest;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (idle_.size() <= most) return;
      oldest = idle_.front();
      idle_.pop_front();
      known_.erase(Key(oldest->device, oldest->inode));
    }
    delete oldest;
  }
}

void Tables::Forget(const struct stat& stat) { Remove(stat, false); }

void Tables::Change(const struct stat& stat) { Remove(stat, true); }

void Tables::Remove(const struct stat& stat, bool changed) {
  Table* table;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = known_.find(Key(stat.st_dev, stat.st_ino));
    if (found == known_.end()) return;
    table = found->second;
    known_.erase(found);
    counters.forgotten.fetch_add(1, std::memory_order_relaxed);
    table->known_ = false;
    if (table->users_ == 0) idle_.erase(table->idle_);
    // Keeps the table while this thread drops its pages.
    table->users_++;
  }
  if (changed) {
    // While the file has its name. If this fails, so do reads.
    table->File();
    table->changed.store(true, std::memory_order_relaxed);
  }
  octavo_advise(table->object, 0, table->len, OCTAVO_ADVICE_DONTNEED);
  Close(table);
}

octavo_queue* Tables::TakeQueue() {
  {
    std::lock_guard<std::mutex> lock(queues_mutex_);
    if (!queues_.empty()) {
      octavo_queue* queue = queues_.back();
      queues_.pop_back();
      return queue;
    }
  }
  octavo_queue* queue = nullptr;
  return octavo_queue_new(cache_, &queue) == OCTAVO_OK ? queue : nullptr;
}

void Tables::GiveQueue(octavo_queue* queue) {
  {
    std::lock_guard<std::mutex> lock(queues_mutex_);
    if (queues_.size() < kQueuesMax) {
      queues_.push_back(queue);
      return;
    }
  }
  octavo_queue_free(queue);
}

void Tables::Print() const {
  octavo_partition_stat stat = {};
  stat.size = sizeof stat;
  if (octavo_partition_get_stat(partition_, &stat) != OCTAVO_OK) return;
  const auto load = [](const std::atomic<uint64_t>& counter) {
    return static_cast<unsigned long long>(counter.load(std::memory_order_relaxed));
  };
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::fprintf(stderr,
               "octavo: partition=%s hits=%llu misses=%llu fills=%llu bypasses=%llu "
               "read_errors=%llu resident_bytes=%llu max_bytes=%llu requests=%llu "
               "read_bytes=%llu once_cached_bytes=%llu once_file_bytes=%llu past_bytes=%llu "
               "tables_opened=%llu tables_uncached=%llu tables_forgotten=%llu\n",
               settings_.partition.c_str(), number(stat.hits), number(stat.misses),
               number(stat.fills), number(stat.bypasses), number(stat.read_errors),
               number(stat.resident_bytes), number(stat.max_bytes), number(stat.requests_read),
               number(stat.read_bytes), load(counters.once_cached_bytes),
               load(counters.once_file_bytes), load(counters.past_bytes), load(counters.opened),
               load(counters.uncached), load(counters.forgotten));
}

namespace {

// Prints the counters of all partitions, if OCTAVO_STATS is set, when the process exits.
__attribute__((destructor)) void PrintAtExit() {
  const char* asked = std::getenv("OCTAVO_STATS");
  if (asked == nullptr || *asked == '\0' || *asked == '0') return;
  std::unique_lock<std::mutex> lock(process_mutex, std::try_to_lock);
  if (!lock.owns_lock() || process == nullptr || process->pid != getpid()) return;
  for (const auto& partition : process->partitions) {
    if (partition.second != nullptr) partition.second->Print();
  }
}

}  // namespace

}  // namespace octavo_rocksdb
