// The tables that a cache knows: one object for each file, however often RocksDB opens it.
//
// A table is identified by its device and inode, so renames and hard links do not matter. While an
// object is open, so is its file, and no other file can get its inode. A file that was changed in
// place has another size or modification time, and becomes another table.

#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "octavo.h"
#include "settings.h"

namespace octavo_rocksdb {

// A file that is open in the cache.
class Table {
 public:
  Table(octavo_object* object, std::string path, const struct stat& stat);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Reads past the cache: returns the number of bytes, less than `len` only at the end of the file,
  // or a negative number of an error. `once`: the bytes will not be needed again.
  int64_t ReadFile(uint64_t offset, char* buffer, size_t len, bool once);

  octavo_object* const object;
  // The length when the table was opened. What was appended later is not in the object.
  const uint64_t len;
  const std::string path;
  const dev_t device;
  const ino_t inode;
  const int64_t modified_ns;
  // Something writes to the file: it is read past the cache.
  std::atomic<bool> changed{false};

 private:
  friend class Tables;
  int File();

  // Guarded by the mutex of `Tables`.
  uint64_t users_ = 0;
  bool known_ = true;
  std::list<Table*>::iterator idle_;

  std::mutex file_mutex_;
  // -1 until the file is first read past the cache.
  std::atomic<int> file_{-1};
};

// What the cache's own statistics do not contain. All relaxed: nothing is ordered by them.
struct Counters {
  // Bytes of reads that are not repeated (those of compactions): from the cache, and past it.
  std::atomic<uint64_t> once_cached_bytes{0};
  std::atomic<uint64_t> once_file_bytes{0};
  // Other bytes that were read past the cache, because the file grew or changed, or in a child.
  std::atomic<uint64_t> past_bytes{0};
  // Tables that were opened, that could not be cached, and that were forgotten.
  std::atomic<uint64_t> opened{0};
  std::atomic<uint64_t> uncached{0};
  std::atomic<uint64_t> forgotten{0};
};

// A partition and its tables. Any thread may use it. Never destroyed: files of RocksDB may be
// closed as late as in destructors of static objects.
class Tables {
 public:
  // Returns the tables of a partition. Creates the process's cache, and the partition, if they do
  // not exist. Returns null and sets `error`, a sentence, if that is impossible.
  static Tables* Of(const Settings& settings, std::string* error);

  // Opens a table. Returns null and sets `error` if it cannot be cached.
  Table* Open(const std::string& path, std::string* error);
  void Close(Table* table);

  // A file was removed: forgets its pages, at once if RocksDB has closed it.
  void Forget(const struct stat& stat);
  // As `Forget`, for a file that is going to be written.
  void Change(const struct stat& stat);

  // A queue, which one thread may use, or null.
  octavo_queue* TakeQueue();
  void GiveQueue(octavo_queue* queue);

  void Print() const;

  Counters counters;

 private:
  using Key = std::pair<dev_t, ino_t>;

  Tables(octavo_cache* cache, octavo_partition* partition, const Settings& settings)
      : cache_(cache), partition_(partition), settings_(settings) {}
  void Remove(const struct stat& stat, bool changed);
  // Closes idle tables, the oldest first, until there are `most`.
  void Shrink(size_t most);
  Table* Known(const struct stat& stat);

  octavo_cache* const cache_;
  octavo_partition* const partition_;
  const Settings settings_;

  std::mutex mutex_;
  std::map<Key, Table*> known_;
  // Tables that RocksDB has closed, the latest last.
  std::list<Table*> idle_;

  std::mutex queues_mutex_;
  std::vector<octavo_queue*> queues_;
};

}  // namespace octavo_rocksdb
