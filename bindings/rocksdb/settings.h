// Settings of a cache: from the environment, and from the URI, which has precedence.

#pragma once

#include <cstdint>
#include <string>

namespace octavo_rocksdb {

struct Settings {
  // Of the cache, which exists once in a process.
  uint64_t memory_max_bytes = 256 << 20;
  std::string io_engine = "auto";
  std::string numa = "off";
  // Of the partition.
  std::string partition = "rocksdb";
  std::string policy = "octavo";
  uint64_t partition_max_bytes = 0;
  uint64_t read_ahead_bytes = 0;
  uint64_t page_bytes = 4096;
  // The most tables that stay open, with their pages, while RocksDB has them closed.
  uint64_t idle_tables_max = 256;

  // Reads the environment, then the URI: `octavo://` or `octavo://?NAME=VALUE&NAME=VALUE`. Returns
  // false and sets `error`, a sentence, if one of them is invalid.
  bool Read(const std::string& uri, std::string* error);

  bool SameCache(const Settings& other) const;
  bool SamePartition(const Settings& other) const;

 private:
  bool Set(const std::string& name, const std::string& value, std::string* error);
};

// Parses "4096", "64KiB", "512MiB", "2GiB" or "1TiB".
bool ParseBytes(const std::string& text, uint64_t* bytes);

}  // namespace octavo_rocksdb
