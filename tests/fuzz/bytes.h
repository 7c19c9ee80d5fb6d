#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "halftone/storage/byte_file.h"

// The fuzzer's input as a file.
class Bytes : public halftone::ByteFile {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  const std::string& path() const override { return path_; }
  int64_t size() const override { return static_cast<int64_t>(size_); }
  size_t read(int64_t offset, char* out, size_t size) const override {
    const size_t at = std::min(static_cast<size_t>(offset), size_), n = std::min(size, size_ - at);
    if (n > 0) std::memcpy(out, data_ + at, n);
    return n;
  }

 private:
  std::string path_ = "x";
  const uint8_t* data_;
  size_t size_;
};
