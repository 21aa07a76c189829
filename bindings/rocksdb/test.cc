// Tests of the file system octavo:// through RocksDB's interface. Linked with the plug-in.
//
// test DIRECTORY: writes files there. Exits with 0, or prints what is wrong and exits with 1.

#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSReadRequest;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

constexpr size_t kLen = 1000003;

void Check(bool is_right, const char* what, int line) {
  if (is_right) return;
  std::fprintf(stderr, "test.cc:%d: this is wrong: %s\n", line, what);
  std::exit(1);
}

#define CHECK(condition) Check((condition), #condition, __LINE__)

std::string Content(char seed) {
  std::string content(kLen, '\0');
  for (size_t i = 0; i < kLen; i++) content[i] = static_cast<char>(seed + i * 31 + i / 4096);
  return content;
}

void Write(const std::string& path, const std::string& content) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  CHECK(file >= 0 && write(file, content.data(), content.size()) == ssize_t(content.size()));
  close(file);
}

std::unique_ptr<FSRandomAccessFile> Open(FileSystem& fs, const std::string& path) {
  std::unique_ptr<FSRandomAccessFile> file;
  CHECK(fs.NewRandomAccessFile(path, FileOptions(), &file, nullptr).ok());
  return file;
}

std::string Read(FSRandomAccessFile& file, uint64_t offset, size_t n, IOOptions options = {}) {
  std::string scratch(n, '?');
  Slice result;
  const IOStatus status = file.Read(offset, n, options, &result, scratch.data(), nullptr);
  if (!status.ok()) return status.ToString();
  return result.ToString();
}

// Descriptors of this process that refer to a deleted file.
int Deleted() {
  int count = 0;
  for (int file = 0; file < 1024; file++) {
    char target[4096];
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    const ssize_t len = readlink(link.c_str(), target, sizeof target);
    if (len > 0 && std::string(target, size_t(len)).find("(deleted)") != std::string::npos) count++;
  }
  return count;
}

void Reads(FileSystem& fs, const std::string& path) {
  const std::string content = Content(1);
  Write(path, content);
  const auto file = Open(fs, path);
  CHECK(!file->use_direct_io());
  for (int round = 0; round < 2; round++) {
    CHECK(Read(*file, 0, 10) == content.substr(0, 10));
    CHECK(Read(*file, 4095, 4103) == content.substr(4095, 4103));
    // Short at the end, empty after it.
    CHECK(Read(*file, kLen - 7, 100) == content.substr(kLen - 7));
    CHECK(Read(*file, kLen, 1).empty() && Read(*file, kLen + 5, 1).empty());
    IOOptions once;
    once.rate_limiter_priority = rocksdb::Env::IO_LOW;
    CHECK(Read(*file, 300000, 100000, once) == content.substr(300000, 100000));
    CHECK(Read(*file, kLen - 7, 100, once) == content.substr(kLen - 7));
  }
  CHECK(file->Prefetch(200000, 50000, IOOptions(), nullptr).ok());
  CHECK(Read(*file, 200000, 50000) == content.substr(200000, 50000));
  file->Hint(FSRandomAccessFile::kRandom);
  CHECK(file->InvalidateCache(0, 0).ok());
  CHECK(Read(*file, 5, 5) == content.substr(5, 5));
}

void Batches(FileSystem& fs, const std::string& path) {
  const std::string content = Content(2);
  Write(path, content);
  const auto file = Open(fs, path);
  const auto again = Open(fs, path);
  char one[40], other[40];
  CHECK(file->GetUniqueId(one, sizeof one) > 0 && again->GetUniqueId(other, sizeof other) > 0);
  CHECK(std::string(one, 5) == std::string(other, 5));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; thread++) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 50; round++) {
        std::vector<FSReadRequest> requests(20);
        std::vector<std::string> scratch(requests.size(), std::string(5000, '?'));
        for (size_t i = 0; i < requests.size(); i++) {
          requests[i].offset = (i * 49999 + size_t(round * 7919 + thread * 977)) % kLen;
          requests[i].len = 5000;
          requests[i].scratch = scratch[i].data();
        }
        CHECK(file->MultiRead(requests.data(), requests.size(), IOOptions(), nullptr).ok());
        for (const FSReadRequest& request : requests) {
          CHECK(request.status.ok());
          CHECK(request.result.ToString() == content.substr(request.offset, request.len));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Names(FileSystem& fs, const std::string& path) {
  const std::string content = Content(3);
  Write(path, content);
  auto file = Open(fs, path);
  CHECK(Read(*file, 77777, 10) == content.substr(77777, 10));
  // A new name changes nothing, nor does one of two names that is removed.
  const std::string renamed = path + ".renamed.sst", linked = path + ".linked.sst";
  CHECK(fs.RenameFile(path, renamed, IOOptions(), nullptr).ok());
  CHECK(fs.LinkFile(renamed, linked, IOOptions(), nullptr).ok());
  CHECK(fs.DeleteFile(renamed, IOOptions(), nullptr).ok());
  CHECK(Read(*Open(fs, linked), 88888, 10) == content.substr(88888, 10));
  // A deleted file stays readable for those that have it open, and no longer.
  CHECK(fs.DeleteFile(linked, IOOptions(), nullptr).ok());
  CHECK(Read(*file, 99999, 10) == content.substr(99999, 10));
  CHECK(Deleted() > 0);
  file.reset();
  CHECK(Deleted() == 0);
  // So does one that is closed before.
  Write(path, content);
  CHECK(Read(*Open(fs, path), 5, 5) == content.substr(5, 5));
  CHECK(fs.DeleteFile(path, IOOptions(), nullptr).ok());
  CHECK(Deleted() == 0);
}

void Changes(FileSystem& fs, const std::string& path) {
  const std::string old = Content(4), next = Content(5);
  Write(path, old);
  const auto before = Open(fs, path);
  CHECK(Read(*before, 1000, 9000) == old.substr(1000, 9000));
  std::unique_ptr<rocksdb::FSRandomRWFile> writer;
  CHECK(fs.NewRandomRWFile(path, FileOptions(), &writer, nullptr).ok());
  CHECK(writer->Write(0, next, IOOptions(), nullptr).ok());
  CHECK(writer->Close(IOOptions(), nullptr).ok());
  CHECK(Read(*before, 1000, 9000) == next.substr(1000, 9000));
  writer.reset();
  CHECK(Read(*Open(fs, path), 1000, 9000) == next.substr(1000, 9000));
  // A file that grows, as blob files do.
  const auto grows = Open(fs, path);
  const int file = open(path.c_str(), O_WRONLY | O_APPEND);
  CHECK(write(file, "more", 4) == 4);
  close(file);
  CHECK(Read(*grows, kLen - 3, 7) == next.substr(kLen - 3) + "more");
}

void Children(FileSystem& fs, const std::string& path) {
  const std::string content = Content(6);
  Write(path, content);
  const auto file = Open(fs, path);
  CHECK(Read(*file, 10, 10) == content.substr(10, 10));
  const pid_t child = fork();
  if (child == 0) _exit(Read(*file, 10, 9000) == content.substr(10, 9000) ? 0 : 1);
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

void Settings() {
  std::shared_ptr<FileSystem> fs;
  const auto error = [&](const std::string& uri) {
    return FileSystem::CreateFromString(rocksdb::ConfigOptions(), uri, &fs).ToString();
  };
  CHECK(error("octavo://?memory_max=lots").find("a number is needed") != std::string::npos);
  CHECK(error("octavo://?memory=1GiB").find("the settings are") != std::string::npos);
  CHECK(error("octavo://path").find("has no path") != std::string::npos);
  CHECK(error("octavo://?memory_max=31MiB").find("a cache already") != std::string::npos);
  CHECK(error("octavo://?memory_max=32MiB&policy=best").find("already") != std::string::npos);
  CHECK(error("octavo://?memory_max=32MiB&partition=p&policy=best").find("policy") !=
        std::string::npos);
  CHECK(error("octavo://?memory_max=32MiB&partition=q&policy=lru&page=16KiB") == "OK");
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  const std::string directory = words[1];
  std::shared_ptr<FileSystem> fs;
  const rocksdb::Status status = FileSystem::CreateFromString(
      rocksdb::ConfigOptions(), "octavo://?memory_max=32MiB", &fs);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  CHECK(status.ok());
  Reads(*fs, directory + "/reads.sst");
  Batches(*fs, directory + "/batches.sst");
  Names(*fs, directory + "/names.sst");
  Changes(*fs, directory + "/changes.sst");
  Children(*fs, directory + "/children.sst");
  Settings();
  return 0;
}
