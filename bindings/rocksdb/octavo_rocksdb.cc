// The file system octavo:// of RocksDB: tables are read through a cache of Octavo, and everything
// else goes to the default file system.

#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>
#include <sys/stat.h>

#include <exception>
#include <memory>
#include <string>

#include "settings.h"
#include "table_file.h"
#include "tables.h"

namespace octavo_rocksdb {

using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSRandomRWFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

namespace {

bool EndsWith(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

// Whether a file does not change once it is written. Others are MANIFEST, logs and the like.
bool IsTable(const std::string& path) {
  return EndsWith(path, ".sst") || EndsWith(path, ".ldb") || EndsWith(path, ".blob");
}

// Tells the tables that a file was written, when its writer is closed.
class Written : public rocksdb::FSRandomRWFileOwnerWrapper {
 public:
  Written(std::unique_ptr<FSRandomRWFile>&& file, Tables* tables, std::string path)
      : FSRandomRWFileOwnerWrapper(std::move(file)), tables_(tables), path_(std::move(path)) {}
  ~Written() override {
    struct stat stat;
    if (::stat(path_.c_str(), &stat) == 0) tables_->Change(stat);
  }

 private:
  Tables* const tables_;
  const std::string path_;
};

class OctavoFileSystem : public rocksdb::FileSystemWrapper {
 public:
  OctavoFileSystem(const std::shared_ptr<FileSystem>& target, Tables* tables)
      : FileSystemWrapper(target), tables_(tables) {}

  static const char* kClassName() { return "OctavoFileSystem"; }
  const char* Name() const override { return kClassName(); }

  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions& options,
                               std::unique_ptr<FSRandomAccessFile>* file,
                               IODebugContext* dbg) override try {
    // A program that asks for a map of the file wants the kernel's page cache.
    if (IsTable(path) && !options.use_mmap_reads) {
      std::string why;
      Table* table = tables_->Open(path, &why);
      if (table != nullptr) {
        file->reset(new TableFile(tables_, table));
        return IOStatus::OK();
      }
      tables_->counters.uncached.fetch_add(1, std::memory_order_relaxed);
    }
    return target()->NewRandomAccessFile(path, options, file, dbg);
  } catch (const std::exception& error) {
    return IOStatus::Aborted(error.what());
  }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* file, IODebugContext* dbg) override {
    Change(path);
    return target()->NewWritableFile(path, options, file, dbg);
  }

  IOStatus ReopenWritableFile(const std::string& path, const FileOptions& options,
                              std::unique_ptr<FSWritableFile>* file,
                              IODebugContext* dbg) override {
    Change(path);
    return target()->ReopenWritableFile(path, options, file, dbg);
  }

  IOStatus ReuseWritableFile(const std::string& path, const std::string& old_path,
                             const FileOptions& options, std::unique_ptr<FSWritableFile>* file,
                             IODebugContext* dbg) override {
    Change(path);
    Change(old_path);
    return target()->ReuseWritableFile(path, old_path, options, file, dbg);
  }

  IOStatus NewRandomRWFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSRandomRWFile>* file, IODebugContext* dbg) override
      try {
    Change(path);
    std::unique_ptr<FSRandomRWFile> opened;
    IOStatus status = target()->NewRandomRWFile(path, options, &opened, dbg);
    if (status.ok()) file->reset(new Written(std::move(opened), tables_, path));
    return status;
  } catch (const std::exception& error) {
    return IOStatus::Aborted(error.what());
  }

  IOStatus Truncate(const std::string& path, size_t size, const IOOptions& options,
                    IODebugContext* dbg) override {
    Change(path);
    return target()->Truncate(path, size, options, dbg);
  }

  IOStatus DeleteFile(const std::string& path, const IOOptions& options,
                      IODebugContext* dbg) override {
    struct stat stat;
    const bool is_last = ::stat(path.c_str(), &stat) == 0 && stat.st_nlink == 1;
    IOStatus status = target()->DeleteFile(path, options, dbg);
    if (status.ok() && is_last) tables_->Forget(stat);
    return status;
  }

  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* dbg) override {
    struct stat replaced = {};
    const bool is_last = ::stat(to.c_str(), &replaced) == 0 && replaced.st_nlink == 1;
    IOStatus status = target()->RenameFile(from, to, options, dbg);
    struct stat now;
    const bool is_replaced = ::stat(to.c_str(), &now) == 0 && now.st_ino != replaced.st_ino;
    if (status.ok() && is_last && is_replaced) tables_->Forget(replaced);
    return status;
  }

 private:
  // A file is going to be written.
  void Change(const std::string& path) {
    struct stat stat;
    if (::stat(path.c_str(), &stat) == 0) tables_->Change(stat);
  }

  Tables* const tables_;
};

FileSystem* New(const std::string& uri, std::unique_ptr<FileSystem>* guard, std::string* message)
    try {
  Settings settings;
  std::string why;
  Tables* tables = settings.Read(uri, &why) ? Tables::Of(settings, &why) : nullptr;
  if (tables == nullptr) {
    *message = "octavo: " + why;
    return nullptr;
  }
  guard->reset(new OctavoFileSystem(FileSystem::Default(), tables));
  return guard->get();
} catch (const std::exception& error) {
  *message = std::string("octavo: ") + error.what();
  return nullptr;
}

// Runs when the library is loaded, after the constructors of librocksdb.
__attribute__((constructor)) void Register() {
  rocksdb::ObjectLibrary::Default()->AddFactory<FileSystem>(
      rocksdb::ObjectLibrary::PatternEntry("octavo").AddSeparator("://", false), New);
}

}  // namespace

}  // namespace octavo_rocksdb
