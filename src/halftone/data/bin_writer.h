#pragma once
#include <cstdint>
#include <string>

#include "halftone/data/file_io.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenise.h"

namespace halftone {

// The .bin file of a source (dataset = "bin"): headerless little-endian ids of 2 or 4 bytes, an EOS at the end of every document. It
// appears under its name when commit() is called.
class BinWriter {
 public:
  // `option`: the command line's name of the path, for messages. Error if the file is one of the source's, or the source holds ids already.
  BinWriter(const DocumentSource& source, std::string path, int width, int32_t eos, const std::string& option);
  // The shards in order, as tokenise_source passes them. Error for one with a loss mask.
  void add(const TokenisedShard& shard);
  // "c4.bin: uint16, 1,234 bytes". Warns of documents of ready-made ids that lacked an EOS.
  std::string commit();
  int64_t tokens() const { return out_.size() / width_; }

 private:
  std::string path_;
  AtomicFile out_;
  int width_;
  int32_t eos_;
  int64_t ended_ = 0;  // documents that got their EOS here
};

}  // namespace halftone
