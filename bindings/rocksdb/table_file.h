// A table as RocksDB reads it: through the cache.

#pragma once

#include <rocksdb/file_system.h>

#include "tables.h"

namespace octavo_rocksdb {

// RocksDB allocates the memory of every read, and says nothing about how long it uses it. So each
// read is one copy from the cache; pins cannot be lent.
class TableFile : public rocksdb::FSRandomAccessFile {
 public:
  // Takes a use of `table`.
  TableFile(Tables* tables, Table* table) : tables_(tables), table_(table) {}
  ~TableFile() override { tables_->Close(table_); }

  rocksdb::IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* dbg) const override;
  rocksdb::IOStatus MultiRead(rocksdb::FSReadRequest* reqs, size_t num_reqs,
                              const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Prefetch(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus InvalidateCache(size_t offset, size_t length) override;
  void Hint(AccessPattern pattern) override;
  size_t GetUniqueId(char* id, size_t max_size) const override;

  // The cache reads the file with O_DIRECT, but takes any offset and length.
  bool use_direct_io() const override { return false; }

 private:
  // Where a read ends in the object. False if the object does not have all bytes that the file may
  // have, or something writes to the file.
  bool Clamp(uint64_t offset, size_t* n) const;
  rocksdb::IOStatus ReadPast(uint64_t offset, size_t n, rocksdb::Slice* result, char* scratch,
                             std::atomic<uint64_t>* bytes) const;
  rocksdb::IOStatus ReadOnce(uint64_t offset, size_t n, rocksdb::Slice* result,
                             char* scratch) const;
  // Reads the requests `which` with one wait. False if nothing was read.
  bool ReadBatch(rocksdb::FSReadRequest* reqs, const std::vector<size_t>& which) const;

  Tables* const tables_;
  Table* const table_;
};

}  // namespace octavo_rocksdb
