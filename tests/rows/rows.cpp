// Prints the rows of a source for tests/parity: rows DATASET PATH TOKENIZER CACHE PACKINGS SEQ_LEN [option=value ...], with the names of
// training.dataloader and packings separated by commas. Standard output: of each row of one pass of each packing int32 tokens[S],
// labels[S], positions[S].
#include <cstdio>
#include <map>
#include <sstream>

#include "halftone/base/error.h"
#include "halftone/data/loader.h"
#include "halftone/data/row_sequence.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenizer.h"

namespace halftone {
namespace {

void print_rows(std::shared_ptr<const TokenStore> store, const RowOptions& options) {
  RowSequence rows(std::move(store), options);
  const auto n = static_cast<size_t>(options.seq_len);
  std::vector<int64_t> tokens(n), labels(n);
  std::vector<int32_t> positions(n), starts(n), out;
  for (int64_t r = 0; r < rows.pass_rows(); ++r) {
    rows.fill({0, r}, {tokens.data(), labels.data(), positions.data(), starts.data()});
    out.assign(tokens.begin(), tokens.end());
    out.insert(out.end(), labels.begin(), labels.end());
    out.insert(out.end(), positions.begin(), positions.end());
    std::fwrite(out.data(), sizeof(int32_t), out.size(), stdout);
  }
}

void run(int argc, char** argv) {
  check(argc >= 7, "expected DATASET PATH TOKENIZER CACHE PACKINGS SEQ_LEN, found {} arguments", argc - 1);
  const Tokenizer tokenizer = Tokenizer::load(argv[3]);
  const TextCodec codec = make_text_codec(tokenizer, {});
  SourceOptions source;
  source.dataset = argv[1], source.path = argv[2];
  source.vocab_size = codec.vocab_size, source.eos_id = codec.eos_id, source.bos_id = codec.bos_id;
  const std::map<std::string, std::string*> names = {
      {"text_key", &source.text_key},     {"subset", &source.subset},           {"split", &source.split},
      {"text_split", &source.text_split}, {"token_dtype", &source.token_dtype}, {"on_bad_line", &source.on_bad_line}};
  for (int i = 7; i < argc; ++i) {
    const std::string text = argv[i], name = text.substr(0, text.find('='));
    check(names.contains(name) && name.size() < text.size(), "unknown option {}", text);
    *names.at(name) = text.substr(name.size() + 1);
  }
  const auto store = open_token_store(*open_source(source), codec, argv[4], 2);
  std::istringstream packings(argv[5]);
  for (std::string packing; std::getline(packings, packing, ',');) {
    RowOptions options;
    options.packing = parse_packing(packing), options.seq_len = std::stoll(argv[6]), options.eos_id = codec.eos_id;
    print_rows(store, options);
  }
}

}  // namespace
}  // namespace halftone

int main(int argc, char** argv) {
  try {
    halftone::run(argc, argv);
  } catch (const halftone::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
