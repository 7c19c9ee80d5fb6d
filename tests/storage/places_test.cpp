#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/storage/byte_file.h"
#include "halftone/storage/disk_cache.h"
#include "halftone/storage/glob.h"
#include "halftone/storage/remote_file.h"
#include "halftone/storage/request.h"

namespace halftone::places_test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/places_test_XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string random_text(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// Objects in memory, with faults.
class Fake : public storage::Server {
 public:
  std::map<std::string, std::string> objects;
  std::string version = "1";
  std::atomic<int> failures = 0;  // of the next requests
  std::atomic<bool> down = false;
  std::atomic<int64_t> requests = 0, reads = 0, bytes = 0;
  bool ranges = true;

  storage::Object look(const std::string& address) override {
    attempt();
    storage::Object object;
    const auto found = objects.find(address);
    object.exists = found != objects.end();
    if (object.exists) object.size = static_cast<int64_t>(found->second.size()), object.version = version, object.ranges = ranges;
    return object;
  }
  void read(const std::string& address, const storage::Object& object, int64_t offset, char* out, size_t size) override {
    attempt();
    const std::string& text = objects.at(address);
    check(version == object.version && static_cast<int64_t>(text.size()) == object.size, "{} changed", address);
    ASSERT_LE(static_cast<size_t>(offset) + size, text.size());
    std::copy_n(text.begin() + offset, size, out);
    ++reads, bytes += static_cast<int64_t>(size);
  }
  void read_all(const std::string& address, const storage::Object&, const std::function<void(const char*, size_t)>& take) override {
    attempt();
    const std::string& text = objects.at(address);
    take(text.data(), text.size() / 2);
    attempt();  // a cut in the middle
    take(text.data() + text.size() / 2, text.size() - text.size() / 2);
  }
  std::vector<RemoteFile> list(const std::string& folder, bool recursive) override {
    attempt();
    std::vector<RemoteFile> files;
    for (const auto& [address, text] : objects) {
      if (address.starts_with(folder) && (recursive || address.find('/', folder.size()) == std::string::npos))
        files.push_back({address, static_cast<int64_t>(text.size()), version});
    }
    return files;
  }

 private:
  void attempt() {
    ++requests;
    if (down || failures.fetch_sub(1) > 0) throw storage::Unavailable("HTTP 503");
  }
};

class Places : public ::testing::Test {
 protected:
  void SetUp() override { open({}); }
  void TearDown() override { set_storage_options({}); }
  void open(StorageOptions options) {
    options.first_retry_seconds = 0.001, options.longest_retry_seconds = 0.01;
    set_storage_options(options);
    server = std::make_shared<Fake>();
    server->objects = objects;
    storage::set_server("s3", server);
  }
  void open_with_cache(int64_t bytes, int64_t ahead = 0) {
    StorageOptions options;
    options.cache_folder = folder.path + "/cache", options.cache_bytes = bytes, options.read_ahead_bytes = ahead;
    open(options);
  }
  static std::string read_all(const std::string& address, size_t step = 1000003) {
    const auto file = open_bytes(address);
    std::string text, part(step, '\0');
    while (const size_t n = file->read(static_cast<int64_t>(text.size()), part.data(), part.size())) text.append(part, 0, n);
    return text;
  }

  Folder folder;
  std::map<std::string, std::string> objects;
  std::shared_ptr<Fake> server;
};

TEST_F(Places, LocalFile) {
  const std::string path = folder.path + "/file", text = random_text(300000, 1);
  write(path, text);
  EXPECT_EQ(read_all(path, 7777), text);
  EXPECT_EQ(local_copy(path), path);
  const auto file = open_bytes(path);
  EXPECT_EQ(file->size(), 300000);
  char last[10];
  EXPECT_EQ(file->read(299998, last, 10), 2U);
  EXPECT_EQ(std::string(last, 2), text.substr(299998));
  EXPECT_EQ(file->read(400000, last, 10), 0U);
  EXPECT_EQ(error_of([&] { open_bytes(folder.path); }), "cannot read " + folder.path + ": expected a regular file, found a folder");
  EXPECT_NE(error_of([&] { open_bytes(path + "x"); }).find(path + "x"), std::string::npos);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string part(5000, '\0');
      for (int64_t at = t * 100; at + 5000 < 300000; at += 3333) {
        file->read(at, part.data(), part.size());
        wrong += part != text.substr(static_cast<size_t>(at), 5000);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Places, PatternsMatchPaths) {
  const auto match = [](const char* pattern, const char* path) { return matches(pattern_parts(pattern), pattern_parts(path)); };
  EXPECT_TRUE(match("a/*.json", "a/b.json"));
  EXPECT_FALSE(match("a/*.json", "a/b/c.json"));
  EXPECT_FALSE(match("*", ".hidden"));
  EXPECT_TRUE(match(".hid*", ".hidden"));
  EXPECT_TRUE(match("**", "a/b/c"));
  EXPECT_FALSE(match("**", "a/.b/c"));
  EXPECT_TRUE(match("**/c", "c"));
  EXPECT_TRUE(match("a/**/**/c", "a/x/y/c"));
  EXPECT_FALSE(match("a/**/c", "a/.x/c"));
  EXPECT_TRUE(match("p-[0-3]?.txt", "p-25.txt"));
  EXPECT_FALSE(match("p-[!0-3]?.txt", "p-25.txt"));
  EXPECT_FALSE(match("**/x", "a/b"));
  std::string deep = "a", stars = "**";  // without a search, this takes no time
  for (int i = 0; i < 300; ++i) deep += "/a", stars += "/*a/**";
  EXPECT_FALSE(match((stars + "/b").c_str(), deep.c_str()));
}

TEST_F(Places, ListsFoldersFilesAndGlobs) {
  for (const char* key : {"top.txt", "d/a.txt", "d/b.txt", "d/.c.txt", "d/e/f.txt", "d/.g/h.txt", "dd/i.txt"})
    objects[std::string("s3://bucket/") + key] = key;
  open({});
  const auto names = [](const std::string& address) {
    std::string all;
    for (const RemoteFile& f : list_remote("s3://bucket/" + address)) all += f.path.substr(12) + " ";
    return all;
  };
  EXPECT_EQ(names("d"), "d/a.txt d/b.txt d/e/f.txt ");
  EXPECT_EQ(names("d/"), "d/a.txt d/b.txt d/e/f.txt ");
  EXPECT_EQ(names("d/a.txt"), "d/a.txt ");
  EXPECT_EQ(names("d/*.txt"), "d/a.txt d/b.txt ");
  EXPECT_EQ(names("*/[a-i].txt"), "d/a.txt d/b.txt dd/i.txt ");
  EXPECT_EQ(names("**/f.txt"), "d/e/f.txt ");
  EXPECT_EQ(names(""), "d/a.txt d/b.txt d/e/f.txt dd/i.txt top.txt ");
  EXPECT_EQ(error_of([&] { names("none"); }), "s3://bucket/none: no such file or folder on the server");
  EXPECT_EQ(error_of([&] { names("d/*.json"); }), "s3://bucket/d/*.json: no file on the server matches");
  EXPECT_EQ(error_of([&] { list_remote("s3://b*/x"); }), "s3://b*/x: a bucket's name has no wildcards");
  const int64_t before = server->requests;
  list_remote("s3://bucket/d/*");
  EXPECT_EQ(read_all("s3://bucket/d/a.txt"), "d/a.txt");
  EXPECT_EQ(server->requests - before, 2);  // a list and a read: no look at each object
}

TEST_F(Places, ReadsEqualBytesInAnyWay) {
  const std::string address = "s3://b/big";
  objects[address] = random_text((size_t{20} << 20) + 12345, 2);
  for (const bool cached : {false, true}) {
    for (const int64_t ahead : {int64_t{0}, int64_t{32} << 20}) {
      fs::remove_all(folder.path + "/cache");
      cached ? open_with_cache(int64_t{100} << 20, ahead) : open({.read_ahead_bytes = ahead});
      EXPECT_TRUE(read_all(address) == objects[address]);
      const int64_t blocks = server->reads;
      EXPECT_EQ(blocks, 3);
      const auto file = open_bytes(address);
      std::mt19937 random(3);
      std::string part(100000, '\0');
      for (int i = 0; i < 50; ++i) {
        const auto at = static_cast<int64_t>(random() % static_cast<uint32_t>(file->size()));
        const size_t n = file->read(at, part.data(), part.size());
        ASSERT_EQ(part.substr(0, n), objects[address].substr(static_cast<size_t>(at), part.size()));
      }
    }
  }
}

TEST_F(Places, RandomReadsFetchFewBytes) {
  const std::string address = "s3://b/big";
  objects[address] = random_text(size_t{20} << 20, 2);
  open({});
  const auto file = open_bytes(address);
  char byte[16];
  for (const int64_t at : {15000000, 3000000, 9000000}) file->read(at, byte, sizeof byte);
  EXPECT_EQ(server->bytes, 48);
}

TEST_F(Places, CacheServesTheNextRun) {
  const std::string address = "s3://b/big";
  objects[address] = random_text(size_t{17} << 20, 4);
  open_with_cache(int64_t{100} << 20);
  EXPECT_TRUE(read_all(address) == objects[address]);
  open_with_cache(int64_t{100} << 20);
  EXPECT_TRUE(read_all(address) == objects[address]);
  EXPECT_EQ(server->reads, 0);
  open_with_cache(int64_t{100} << 20);
  server->version = "2";
  server->objects[address][5] ^= 1;
  EXPECT_TRUE(read_all(address) == server->objects[address]);
  EXPECT_EQ(server->reads, 3);
}

std::vector<std::string> parts_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& e : fs::recursive_directory_iterator(folder))
    if (e.is_regular_file() && e.path().parent_path() != fs::path(folder)) files.push_back(e.path().string());
  return files;
}

TEST_F(Places, DamagedPartsAreReadAgain) {
  const std::string address = "s3://b/big";
  objects[address] = random_text(size_t{30} << 20, 5);
  open_with_cache(int64_t{100} << 20);
  read_all(address);
  const std::vector<std::string> parts = parts_in(folder.path + "/cache");
  ASSERT_EQ(parts.size(), 4U);
  fs::resize_file(parts[0], 1000);
  fs::resize_file(parts[1], 0);
  {
    std::fstream file(parts[2], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    const char old = static_cast<char>(file.get());
    file.seekp(100);
    file.put(static_cast<char>(old ^ 1));
  }
  open_with_cache(int64_t{100} << 20);
  EXPECT_TRUE(read_all(address) == objects[address]);
  EXPECT_EQ(server->reads, 3);
}

TEST_F(Places, CacheIsHeldToItsSize) {
  storage::DiskCache cache(folder.path + "/cache", 100000);
  const std::string part(9000, 'x');
  const auto key = [](int64_t i) { return storage::DiskCache::key("s3://b/x", "1", 1, i); };
  for (int64_t i = 0; i < 40; ++i) {
    cache.put(key(i), part + static_cast<char>('a' + i));
    ASSERT_TRUE(cache.get(key(0))) << i;  // used all the time, so it stays
    int64_t sum = 0;
    for (const std::string& file : parts_in(folder.path + "/cache")) sum += static_cast<int64_t>(fs::file_size(file));
    ASSERT_LE(sum, 100000);
    ASSERT_EQ(sum, cache.used());
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // file times
  }
  EXPECT_FALSE(cache.get(key(1)));
  EXPECT_TRUE(cache.get(key(39)));
  cache.put(key(100), std::string(200000, 'y'));  // larger than the cache
  EXPECT_FALSE(cache.get(key(100)));
  EXPECT_TRUE(cache.on());
}

TEST_F(Places, ProcessesShareTheCache) {
  const std::string path = folder.path + "/cache";
  const auto key = [](int64_t i) { return storage::DiskCache::key("s3://b/x", "1", 1, i); };
  std::vector<pid_t> children;
  for (int p = 0; p < 3; ++p) {
    const pid_t child = ::fork();
    if (child == 0) {
      storage::DiskCache cache(path, 300000);
      int bad = 0;
      for (int64_t i = 0; i < 300; ++i) {
        const int64_t part = (i * 7 + p * 13) % 60;
        const std::string wanted(9000, static_cast<char>('A' + part));
        if (const auto kept = cache.get(key(part)); kept)
          bad += *kept != wanted;
        else
          cache.put(key(part), wanted);
      }
      ::_exit(bad == 0 && cache.on() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  int64_t sum = 0;
  for (const std::string& file : parts_in(path)) sum += static_cast<int64_t>(fs::file_size(file));
  EXPECT_LE(sum, 300000);
  const storage::DiskCache cache(path, 300000);
  EXPECT_EQ(cache.used(), sum);
}

TEST_F(Places, CacheOnAFullDiskIsSwitchedOff) {
  const std::string address = "s3://b/big";
  objects[address] = random_text(size_t{10} << 20, 6);
  StorageOptions options;
  options.cache_folder = "/dev/null/cache", options.cache_bytes = 1 << 30;  // no folder can be made there
  open(options);
  ::testing::internal::CaptureStdout();
  EXPECT_TRUE(read_all(address) == objects[address]);
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(log.find("the disk cache /dev/null/cache is off for this run"), std::string::npos) << log;
  EXPECT_NE(error_of([&] { local_copy(address); }).find("set [data] cache_folder and cache_gib"), std::string::npos);
}

TEST_F(Places, LocalCopy) {
  const std::string address = "s3://b/d/tokens.bin";
  objects[address] = random_text((size_t{18} << 20) + 7, 7);
  open_with_cache(int64_t{30} << 20);
  const std::string path = local_copy(address);
  EXPECT_TRUE(path.ends_with("/tokens.bin"));
  EXPECT_TRUE(read_all(path) == objects[address]);
  const int64_t reads = server->reads;
  EXPECT_EQ(local_copy(address), path);
  EXPECT_EQ(server->reads, reads);
  objects["s3://b/other.bin"] = objects[address];
  open_with_cache(int64_t{10} << 20);
  EXPECT_NE(error_of([&] { local_copy("s3://b/other.bin"); }).find("raise [data] cache_gib"), std::string::npos);
}

TEST_F(Places, ServersWithoutRangesAreCopied) {
  const std::string address = "s3://b/text?key=1";
  objects[address] = random_text(100000, 8);
  open_with_cache(1000000);
  server->ranges = false;
  server->failures = 3;  // the third attempt's first half arrives
  const auto file = open_bytes(address);
  EXPECT_EQ(file->path(), address);
  EXPECT_TRUE(read_all(address) == objects[address]);
}

TEST_F(Places, FailuresThatMayPassAreRetried) {
  objects["s3://b/x"] = "contents";
  open({});
  server->failures = 7;
  EXPECT_EQ(read_all("s3://b/x"), "contents");
  EXPECT_EQ(server->requests, 9);
  EXPECT_EQ(error_of([&] { open_bytes("s3://b/y"); }), "s3://b/y: no such object on the server");
  EXPECT_EQ(server->requests, 10);  // not retried
}

TEST_F(Places, AChangeIsAnError) {
  objects["s3://b/x"] = "contents";
  open({});
  const auto file = open_bytes("s3://b/x");
  server->version = "2";
  char out[8];
  EXPECT_EQ(error_of([&] { file->read(0, out, 8); }), "s3://b/x changed");
}

TEST_F(Places, AnOutageStallsAndIsLogged) {
  objects["s3://b/x"] = "contents";
  open({});
  const auto file = open_bytes("s3://b/x");
  server->down = true;
  ::testing::internal::CaptureStdout();
  std::string text(8, '\0');
  std::thread reader([&] { file->read(0, text.data(), 8); });
  while (!waits_for_server()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::seconds(3));
  server->down = false;
  reader.join();
  EXPECT_FALSE(waits_for_server());
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(text, "contents");
  const std::string line = "s3://b/x: no answer for ", why = " (last: HTTP 503); the run waits\n", back = "s3://b/x: data is back after ";
  for (const std::string& part : {line, why, back}) {
    const size_t at = log.find(part);
    ASSERT_NE(at, std::string::npos) << log;
    EXPECT_EQ(log.find(part, at + 1), std::string::npos) << log;  // one line
  }
}

TEST_F(Places, AStopEndsWaits) {
  objects["s3://b/x"] = random_text(size_t{30} << 20, 9);
  open({.read_ahead_bytes = int64_t{16} << 20});
  const auto file = open_bytes("s3://b/x");
  server->down = true;
  std::vector<std::thread> readers;
  std::atomic<int> ended = 0;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      char out[8];
      ended += error_of([&] { file->read(0, out, 8); }) == "s3://b/x: not read, because the run ends";
    });
  }
  while (server->requests < 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stop_remote_reads();
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(ended, 2);
}

}  // namespace
}  // namespace halftone::places_test
