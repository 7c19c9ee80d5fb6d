#include "halftone/data/lane_feed.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/digest.h"
#include "halftone/data/source.h"

namespace halftone {
namespace {

using Json = nlohmann::json;

int64_t whole(const Json& json, const char* key) {
  check(json.is_object() && json.contains(key) && json[key].is_number_integer() && json[key].get<int64_t>() >= 0,
        "data position of the checkpoint: expected a number {} >= 0, found {}", key,
        json.is_object() ? json.value(key, Json()).dump() : json.dump());
  return json[key].get<int64_t>();
}

std::vector<int64_t> wholes(const Json& json, const char* key) {
  check(json.is_object() && json.contains(key) && json[key].is_array(), "data position of the checkpoint: expected a list {}", key);
  std::vector<int64_t> out;
  for (const Json& item : json[key]) {
    check(item.is_number_integer() && item.get<int64_t>() >= 0, "data position of the checkpoint: expected numbers >= 0 in {}", key);
    out.push_back(item.get<int64_t>());
  }
  return out;
}

class StreamRows : public LaneRows {
 public:
  StreamRows(std::shared_ptr<const DocumentSource> source, TextCodec codec, const RowOptions& rows, const StreamOptions& options)
      : options_(rows), lanes_(options.lanes), window_(options.window), reader_(std::move(source), std::move(codec), options) {
    std::string names;
    for (const SourceFile& file : reader_.source().files().files) names += fmt::format("{}\n{} {}\n", file.name, file.size, file.version);
    digest_ = digest_hex(names);
    restart({}, {}, std::vector<bool>(static_cast<size_t>(lanes_), true));
  }
  int64_t fill(int64_t lane, RowView out) override {
    auto& packer = packers_[static_cast<size_t>(lane)];
    if (!packer)
      packer = std::make_unique<LanePacker>(
          options_, [this, lane] { return reader_.next(lane); }, starts_[static_cast<size_t>(lane)]);
    return packer->fill(out);
  }
  bool pads() const override { return ends_with_document(options_.packing); }
  std::string digest() const override { return digest_; }
  std::string made_by() const override {
    const std::string& chat = reader_.source().chat();
    return fmt::format("{} {}{}{}", reader_.source().kind(), reader_.source().options(), chat.empty() ? "" : " ", chat);
  }
  std::string summary() const override {
    return fmt::format(
        "{}; streamed in {} lanes of {} groups; {}", source_summary(reader_.source(), digest_), lanes_, reader_.groups(),
        options_.shuffle ? fmt::format("files shuffled, documents in a window of {}", with_commas(window_)) : "not shuffled");
  }
  Json position(int64_t lane, int64_t) const override {
    const auto& packer = packers_[static_cast<size_t>(lane)];
    const LanePacker::Position& p = packer ? packer->position() : starts_[static_cast<size_t>(lane)];
    const BlockStart& b = *p.first.block;
    return {{"epoch", b.epoch}, {"place", b.place},           {"document", b.document}, {"bytes", b.bytes},
            {"dealt", b.dealt}, {"ordinal", p.first.ordinal}, {"used", p.used}};
  }
  void restart(const std::map<int64_t, Json>& positions, const std::map<int64_t, int64_t>&, const std::vector<bool>& owned) override {
    packers_.clear();
    packers_.resize(static_cast<size_t>(lanes_));
    starts_.clear();
    std::map<int64_t, LaneStart> starts;
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      LanePacker::Position position{reader_.beginning(lane), 0};
      if (const auto found = positions.find(lane); found != positions.end()) {
        const Json& json = found->second;
        const auto block = std::make_shared<const BlockStart>(
            BlockStart{whole(json, "epoch"), whole(json, "place"), whole(json, "document"), wholes(json, "bytes"), wholes(json, "dealt")});
        position = {{block, whole(json, "ordinal")}, whole(json, "used")};
        starts[lane] = position.first;
      }
      starts_.push_back(std::move(position));
    }
    reader_.restart(starts, owned);
  }

 private:
  RowOptions options_;
  int64_t lanes_, window_;
  StreamReader reader_;
  std::string digest_;
  std::vector<LanePacker::Position> starts_;
  std::vector<std::unique_ptr<LanePacker>> packers_;
};

class IndexedRows : public LaneRows {
 public:
  IndexedRows(std::unique_ptr<RowSequence> rows, int64_t lanes, int64_t epochs) : rows_(std::move(rows)), epochs_(epochs), lanes_(lanes) {
    restart({}, {}, {});
  }
  int64_t fill(int64_t lane, RowView out) override {
    RowCursor& next = next_[static_cast<size_t>(lane)];
    next = rows_->advance(next, 0);
    if (epochs_ > 0 && next.epoch >= epochs_) return RowFeed::kEnd;
    const int64_t filled = rows_->fill(next, out);
    next = rows_->advance(next, lanes_);
    return filled;
  }
  bool pads() const override { return rows_->pads(); }
  std::string digest() const override { return rows_->digest(); }
  std::string made_by() const override { return rows_->made_by(); }
  std::string summary() const override { return rows_->summary(); }
  Json position(int64_t, int64_t rows) const override { return {{"rows", rows}}; }
  void restart(const std::map<int64_t, Json>&, const std::map<int64_t, int64_t>& rows, const std::vector<bool>&) override {
    next_.clear();
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      const auto done = rows.find(lane);
      next_.push_back(rows_->advance({}, lane + (done == rows.end() ? 0 : done->second * lanes_)));
    }
  }

 private:
  std::unique_ptr<RowSequence> rows_;
  int64_t epochs_, lanes_;
  std::vector<RowCursor> next_;
};

}  // namespace

std::unique_ptr<LaneRows> stream_rows(std::shared_ptr<const DocumentSource> source, TextCodec codec, const RowOptions& rows,
                                      const StreamOptions& options) {
  return std::make_unique<StreamRows>(std::move(source), std::move(codec), rows, options);
}

std::unique_ptr<LaneRows> indexed_rows(std::unique_ptr<RowSequence> rows, int64_t lanes, int64_t epochs) {
  return std::make_unique<IndexedRows>(std::move(rows), lanes, epochs);
}

std::vector<bool> lanes_of(int64_t lanes, int64_t local_batch, int64_t global_batch, int64_t dp_rank, int64_t dp_size, int64_t first) {
  std::vector<bool> owned(static_cast<size_t>(lanes), false);
  const int64_t period = lanes / std::gcd(lanes, global_batch);  // steps after which the pattern repeats
  for (int64_t step = 0; step < period; ++step) {
    for (int64_t row = step * global_batch + dp_rank * local_batch; row < (step + 1) * global_batch; row += dp_size * local_batch)
      for (int64_t b = 0; b < local_batch; ++b) owned[static_cast<size_t>((first + row + b) % lanes)] = true;
  }
  return owned;
}

LaneFeed::LaneFeed(std::vector<Source> sources, Options options) : sources_(std::move(sources)), options_(std::move(options)) {
  check(!sources_.empty() && options_.lanes >= 1 && options_.global_batch >= 1, "a stream needs a source, a lane and a batch");
  for (const Source& changing : sources_) {
    for (const auto& [step, ignored] : changing.weight.changes()) {
      const bool some = std::any_of(sources_.begin(), sources_.end(), [&, at = step](const Source& s) { return s.weight.at(at) > 0; });
      check(some, "training.sources: at step {} every weight is 0; expected a source with a weight above 0", step);
    }
  }
  lanes_.resize(static_cast<size_t>(options_.lanes));
  for (Lane& lane : lanes_) lane.drawn.assign(sources_.size(), 0), lane.ended.assign(sources_.size(), false);
  for (const Source& s : sources_) s.rows->restart({}, {}, owned(0));
}

std::vector<bool> LaneFeed::owned(int64_t first) const {
  return lanes_of(options_.lanes, options_.local_batch, options_.global_batch, options_.dp_rank, options_.dp_size, first);
}

bool LaneFeed::pads() const {
  return std::any_of(sources_.begin(), sources_.end(), [](const Source& s) { return s.rows->pads(); });
}

int64_t LaneFeed::produce(int64_t number, RowView out) {
  Lane& lane = lanes_[static_cast<size_t>(number)];
  const int64_t row = lane.rows * options_.lanes + number;
  std::vector<double> weights(sources_.size());
  for (;;) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      const int64_t limit = sources_[i].row_limit;
      const bool full = limit > 0 && lane.drawn[i] * options_.lanes + number >= limit;
      weights[i] = lane.ended[i] || full ? 0 : sources_[i].weight.at(row / options_.global_batch);
    }
    last_source_ = draw_source(row, options_.lanes, options_.seed, weights);
    if (last_source_ < 0) return kEnd;
    const auto i = static_cast<size_t>(last_source_);
    const int64_t filled = sources_[i].rows->fill(number, out);
    if (filled == kEnd) {
      lane.ended[i] = true;
      continue;
    }
    ++lane.rows;
    ++lane.drawn[i];
    return filled;
  }
}

int64_t LaneFeed::fill(RowCursor cursor, RowView out) {
  const int64_t number = cursor.row % options_.lanes, wanted = cursor.row / options_.lanes;
  const Lane& lane = lanes_[static_cast<size_t>(number)];
  check(lane.rows <= wanted, "stream: row {} of lane {} is asked for after row {}", wanted, number, lane.rows);
  const auto S = static_cast<size_t>(options_.seq_len);
  wide_.resize(2 * S), narrow_.resize(2 * S);
  const RowView scratch{wide_.data(), wide_.data() + S, narrow_.data(), narrow_.data() + S};
  while (lane.rows < wanted)
    if (produce(number, scratch) == kEnd) return kEnd;
  return produce(number, out);
}

std::string LaneFeed::digest() const {
  if (!options_.mixture) return sources_[0].rows->digest();
  std::string all;
  for (const Source& s : sources_) all += s.name + " " + s.rows->digest() + "\n";
  return digest_hex(all);
}

std::string LaneFeed::made_by() const {
  std::vector<std::string> all;
  for (const Source& s : sources_) all.push_back(options_.mixture ? s.name + ": " + s.rows->made_by() : s.rows->made_by());
  return fmt::format("{}", fmt::join(all, "; "));
}

std::string LaneFeed::describe() const {
  return fmt::format("lanes={} {} tokenizer={}", options_.lanes, options_.described, options_.tokenizer);
}

std::string LaneFeed::summary() const {
  if (!options_.mixture) return sources_[0].rows->summary();
  std::vector<std::string> all;
  for (const Source& s : sources_) all.push_back(fmt::format("{} (weight {}): {}", s.name, s.weight.text(), s.rows->summary()));
  return fmt::format("mixture of {} sources; {}", sources_.size(), fmt::join(all, "; "));
}

std::vector<std::string> LaneFeed::sources() const {
  std::vector<std::string> names;
  if (options_.mixture)
    for (const Source& s : sources_) names.push_back(s.name);
  return names;
}

int64_t LaneFeed::rows_before(int64_t lane, int64_t row) const {
  return row > lane ? (row - lane + options_.lanes - 1) / options_.lanes : 0;
}

Json LaneFeed::positions(RowCursor boundary) const {
  Json lanes = Json::object(), data = Json::object();
  for (int64_t l = 0; l < options_.lanes; ++l) {
    const Lane& lane = lanes_[static_cast<size_t>(l)];
    const int64_t before = rows_before(l, boundary.row);
    // The process that has the lane's last row before the boundary says where the next one starts.
    if (lane.rows != before || before == 0) continue;
    Json& out = lanes[std::to_string(l)] = {{"rows", lane.rows}, {"sources", Json::object()}};
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (lane.drawn[i] == 0) continue;
      Json& at = out["sources"][sources_[i].name] = sources_[i].rows->position(l, lane.drawn[i]);
      at["drawn"] = lane.drawn[i];
      if (lane.ended[i]) at["ended"] = true;
    }
  }
  for (const Source& s : sources_)
    data[s.name] = {{"digest", s.rows->digest()}, {"documents", s.rows->made_by()}, {"encoding", s.encoding}, {"weight", s.weight.text()}};
  return {{"lanes", lanes}, {"data", data}};
}

std::string LaneFeed::differences(const Json& saved) const {
  std::vector<std::string> all;
  for (const Source& s : sources_) {
    const auto was = saved.find(s.name);
    if (was == saved.end()) {
      all.push_back(fmt::format("{} is new and starts at its beginning", s.name));
      continue;
    }
    check(was->is_object(), "data position of the checkpoint: {} is not a table", s.name);
    const std::string digest = was->value("digest", ""), documents = was->value("documents", ""), weight = was->value("weight", "");
    constexpr const char* kInstead = "restore them, give the source another name, or add \"dataloader\" to checkpoint.exclude_from_loading";
    check(digest == s.rows->digest(), "the files of {} differ from those that the checkpoint was trained on (digest {} then, {} now): {}",
          options_.mixture ? "source " + s.name : s.name, digest, s.rows->digest(), kInstead);
    check(documents == s.rows->made_by(), "{}: documents are not read as in the checkpoint ({} then, {} now): {}", s.name, documents,
          s.rows->made_by(), kInstead);
    check(was->value("encoding", "") == s.encoding,
          "{}: texts are not encoded as in the checkpoint (the tokenizer, add_bos, add_eos or special_tokens_in_text): {}", s.name,
          kInstead);
    if (weight != s.weight.text()) all.push_back(fmt::format("weight of {}: {} then, {} now", s.name, weight, s.weight.text()));
  }
  for (const auto& [name, ignored] : saved.items()) {
    if (std::none_of(sources_.begin(), sources_.end(), [&](const Source& s) { return s.name == name; }))
      all.push_back(fmt::format("{} is left out", name));
  }
  return fmt::format("{}", fmt::join(all, "; "));
}

void LaneFeed::restore(const Json& saved, RowCursor boundary) {
  check(saved.is_object() && saved.contains("lanes") && saved["lanes"].is_object() && saved.contains("data") && saved["data"].is_object(),
        "data position of the checkpoint: expected tables lanes and data");
  if (const std::string changed = differences(saved["data"]); !changed.empty())
    log_info("Mixture changed since the checkpoint: {}", changed);
  for (Lane& lane : lanes_) lane.rows = 0, lane.drawn.assign(sources_.size(), 0), lane.ended.assign(sources_.size(), false);
  std::vector<std::map<int64_t, Json>> positions(sources_.size());
  std::vector<std::map<int64_t, int64_t>> rows(sources_.size());
  for (int64_t l = 0; l < options_.lanes; ++l) {
    const auto found = saved["lanes"].find(std::to_string(l));
    if (found == saved["lanes"].end()) continue;
    Lane& lane = lanes_[static_cast<size_t>(l)];
    lane.rows = whole(*found, "rows");
    check(lane.rows == rows_before(l, boundary.row), "data position of the checkpoint: lane {} has {} rows before row {}", l, lane.rows,
          boundary.row);
    check(found->contains("sources") && (*found)["sources"].is_object(), "data position of the checkpoint: lane {} has no table sources",
          l);
    for (size_t i = 0; i < sources_.size(); ++i) {
      const auto at = (*found)["sources"].find(sources_[i].name);
      if (at == (*found)["sources"].end()) continue;
      lane.drawn[i] = rows[i][l] = whole(*at, "drawn");
      lane.ended[i] = at->value("ended", false);
      positions[i][l] = *at;
    }
  }
  for (size_t i = 0; i < sources_.size(); ++i) sources_[i].rows->restart(positions[i], rows[i], owned(boundary.row));
}

}  // namespace halftone
