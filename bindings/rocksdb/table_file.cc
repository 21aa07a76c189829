#include "table_file.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

namespace octavo_rocksdb {

using rocksdb::Env;
using rocksdb::FSReadRequest;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

// Longer reads that are not repeated do not look into the cache first: they are read-ahead.
constexpr size_t kLookBytes = 64 << 10;

// RocksDB names the threads of its pools so; threads that they start inherit the name.
bool IsPoolThread() {
  static thread_local const bool is_pool = [] {
    char name[16] = {};
    prctl(PR_GET_NAME, name);
    return std::strncmp(name, "rocksdb:", 8) == 0;
  }();
  return is_pool;
}

// Whether the bytes of a read will not be needed again. Compactions read with IO_LOW, or with
// IO_USER while writers wait for them; all other reads of RocksDB have no priority (IO_TOTAL).
bool IsOnce(const IOOptions& options) {
  const Env::IOPriority priority = options.rate_limiter_priority;
  if (priority == Env::IO_TOTAL) return false;
  return priority == Env::IO_LOW || IsPoolThread();
}

IOStatus Failed(const Table& table, uint64_t offset, size_t n, const std::string& why) {
  return IOStatus::IOError(
      "While reading " + std::to_string(n) + " bytes at " + std::to_string(offset),
      table.path + ": " + why);
}

char* PutVarint(char* at, uint64_t number) {
  for (; number >= 128; number >>= 7) *at++ = static_cast<char>(number | 128);
  *at++ = static_cast<char>(number);
  return at;
}

constexpr size_t kVarintMax = 10;

}  // namespace

bool TableFile::Clamp(uint64_t offset, size_t* n) const {
  if (table_->changed.load(std::memory_order_relaxed)) return false;
  if (offset <= table_->len && *n <= table_->len - offset) return true;
  // Tables are complete when they are opened. A blob file of the old kind may have grown since.
  struct stat stat;
  if (::stat(table_->path.c_str(), &stat) == 0 && stat.st_ino == table_->inode &&
      static_cast<uint64_t>(stat.st_size) > table_->len) {
    return false;
  }
  *n = offset < table_->len ? static_cast<size_t>(table_->len - offset) : 0;
  return true;
}

IOStatus TableFile::ReadPast(uint64_t offset, size_t n, Slice* result, char* scratch,
                             std::atomic<uint64_t>* bytes) const {
  const bool once = bytes == &tables_->counters.once_file_bytes;
  const int64_t done = table_->ReadFile(offset, scratch, n, once);
  *result = Slice(scratch, done < 0 ? 0 : static_cast<size_t>(done));
  if (done < 0) return Failed(*table_, offset, n, std::strerror(static_cast<int>(-done)));
  bytes->fetch_add(static_cast<uint64_t>(done), std::memory_order_relaxed);
  return IOStatus::OK();
}

IOStatus TableFile::ReadOnce(uint64_t offset, size_t n, Slice* result, char* scratch) const {
  if (n <= kLookBytes && octavo_try_read(table_->object, offset, scratch, n) == OCTAVO_OK) {
    tables_->counters.once_cached_bytes.fetch_add(n, std::memory_order_relaxed);
    *result = Slice(scratch, n);
    return IOStatus::OK();
  }
  IOStatus status = ReadPast(offset, n, result, scratch, &tables_->counters.once_file_bytes);
  if (status.ok()) return status;
  // The file has lost its name: the cache still has a descriptor.
  const int code = octavo_read(table_->object, offset, scratch, n);
  if (code != OCTAVO_OK) return status;
  *result = Slice(scratch, n);
  return IOStatus::OK();
}

IOStatus TableFile::Read(uint64_t offset, size_t n, const IOOptions& options, Slice* result,
                         char* scratch, IODebugContext*) const {
  *result = Slice(scratch, 0);
  if (!Clamp(offset, &n)) {
    return ReadPast(offset, n, result, scratch, &tables_->counters.past_bytes);
  }
  if (n == 0) return IOStatus::OK();
  if (IsOnce(options)) return ReadOnce(offset, n, result, scratch);
  const int code = octavo_read(table_->object, offset, scratch, n);
  if (code == OCTAVO_OK) {
    *result = Slice(scratch, n);
    return IOStatus::OK();
  }
  if (code == OCTAVO_EFORK || code == OCTAVO_ENOMEMORY) {
    return ReadPast(offset, n, result, scratch, &tables_->counters.past_bytes);
  }
  return Failed(*table_, offset, n, octavo_error_message());
}

IOStatus TableFile::MultiRead(FSReadRequest* reqs, size_t num_reqs, const IOOptions& options,
                              IODebugContext* dbg) try {
  std::vector<size_t> missing;
  for (size_t i = 0; i < num_reqs; i++) {
    FSReadRequest& req = reqs[i];
    size_t n = req.len;
    const bool is_hit = !IsOnce(options) && Clamp(req.offset, &n) && n == req.len &&
                        octavo_try_read(table_->object, req.offset, req.scratch, n) == OCTAVO_OK;
    if (!is_hit) {
      missing.push_back(i);
      continue;
    }
    req.result = Slice(req.scratch, n);
    req.status = IOStatus::OK();
  }
  if (missing.size() > 1 && !IsOnce(options) && ReadBatch(reqs, missing)) return IOStatus::OK();
  for (const size_t i : missing) {
    FSReadRequest& req = reqs[i];
    req.status = Read(req.offset, req.len, options, &req.result, req.scratch, dbg);
  }
  return IOStatus::OK();
} catch (const std::exception& error) {
  return IOStatus::Aborted(error.what());
}

bool TableFile::ReadBatch(FSReadRequest* reqs, const std::vector<size_t>& which) const {
  std::vector<octavo_request> requests(which.size());
  for (size_t i = 0; i < which.size(); i++) {
    const FSReadRequest& req = reqs[which[i]];
    size_t n = req.len;
    if (!Clamp(req.offset, &n) || n != req.len) return false;
    octavo_request& request = requests[i];
    request.size = sizeof request;
    request.user_data = i;
    request.offset = req.offset;
    request.len = req.len;
    request.memory = req.scratch;
    request.op = OCTAVO_OP_READ;
  }
  std::vector<octavo_completion> completions(which.size());
  completions[0].size = sizeof completions[0];
  octavo_queue* queue = tables_->TakeQueue();
  if (queue == nullptr) return false;
  size_t count = 0;
  bool is_done =
      octavo_queue_submit(queue, table_->object, requests.data(), requests.size()) == OCTAVO_OK;
  while (is_done && octavo_queue_pending(queue) > 0) {
    completions[0].size = sizeof completions[0];
    const int code = octavo_queue_wait(queue, completions.size(), completions.data(),
                                       completions.size(), &count);
    if (code != OCTAVO_OK) is_done = false;
    for (size_t i = 0; is_done && i < count; i++) {
      FSReadRequest& req = reqs[which[completions[i].user_data]];
      // A read that failed is repeated alone, which gives it its own message.
      req.status = completions[i].code == OCTAVO_OK
                       ? IOStatus::OK()
                       : Read(req.offset, req.len, IOOptions(), &req.result, req.scratch, nullptr);
      if (completions[i].code == OCTAVO_OK) req.result = Slice(req.scratch, req.len);
    }
  }
  if (is_done) {
    tables_->GiveQueue(queue);
  } else {
    octavo_queue_free(queue);
  }
  return is_done;
}

IOStatus TableFile::Prefetch(uint64_t offset, size_t n, const IOOptions& options,
                             IODebugContext*) {
  // What a compaction reads ahead is read past the cache, by RocksDB's own buffer.
  if (IsOnce(options)) return IOStatus::NotSupported("Prefetch");
  if (offset >= table_->len || table_->changed.load(std::memory_order_relaxed)) {
    return IOStatus::OK();
  }
  const uint64_t len = std::min<uint64_t>(n, table_->len - offset);
  octavo_advise(table_->object, offset, len, OCTAVO_ADVICE_WILLNEED);
  return IOStatus::OK();
}

IOStatus TableFile::InvalidateCache(size_t offset, size_t length) {
  if (offset >= table_->len) return IOStatus::OK();
  const uint64_t rest = table_->len - offset;
  const uint64_t len = length == 0 ? rest : std::min<uint64_t>(length, rest);
  octavo_invalidate(table_->object, offset, len, nullptr);
  return IOStatus::OK();
}

void TableFile::Hint(AccessPattern pattern) {
  uint32_t advice = OCTAVO_ADVICE_NORMAL;
  switch (pattern) {
    case kRandom:
      advice = OCTAVO_ADVICE_RANDOM;
      break;
    case kSequential:
      advice = OCTAVO_ADVICE_SEQUENTIAL;
      break;
    case kWontNeed:
      advice = OCTAVO_ADVICE_DONTNEED;
      break;
    case kWillNeed:
      // A whole table that a compaction is going to read once.
      return;
    default:
      break;
  }
  octavo_advise(table_->object, 0, table_->len, advice);
}

size_t TableFile::GetUniqueId(char* id, size_t max_size) const {
  if (max_size < kVarintMax * 3) return 0;
  char* end = PutVarint(id, table_->device);
  end = PutVarint(end, table_->inode);
  end = PutVarint(end, static_cast<uint64_t>(table_->modified_ns));
  return static_cast<size_t>(end - id);
}

}  // namespace octavo_rocksdb
