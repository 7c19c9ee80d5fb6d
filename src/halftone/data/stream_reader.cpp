#include "halftone/data/stream_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/epoch_plan.h"
#include "halftone/data/tokenise.h"

namespace halftone {
namespace {

constexpr int64_t kLanesPerGroup = 8;               // few groups: few files open at once
constexpr int64_t kFilesPerGroup = 8;               // many files a group: epochs of the groups differ little in length
constexpr std::chrono::seconds kAnnouncePause{10};  // small sets end many epochs a second
constexpr int64_t kAheadBytes = int64_t{16} << 20;  // text ahead of a group's consumers

}  // namespace

struct StreamReader::Raw {
  Document::Kind kind = Document::Kind::text;
  std::string text;
  std::vector<ByteRange> spans;
  std::vector<int32_t> ids;
  std::vector<uint8_t> loss;
  int64_t bytes() const { return static_cast<int64_t>(text.size() + ids.size() * sizeof(int32_t)); }
};

struct StreamReader::Group {
  struct Waiting {
    std::shared_ptr<StreamedDocument> document;
    int64_t bytes = 0;
    bool ready = false;
  };
  struct Lane {
    std::deque<std::shared_ptr<Waiting>> queue;
    int64_t first = 0;  // earlier ordinals are not needed
  };
  int64_t number = 0, first_lane = 0;
  std::vector<Lane> lanes;
  std::vector<bool> owned;  // by lane of the group
  BlockStart start;
  std::thread thread;
  std::mutex mutex;
  std::condition_variable ready, room;
  int64_t queued_bytes = 0, hungry = 0;
  bool ended = false;
  std::exception_ptr error;
};

StreamReader::StreamReader(std::shared_ptr<const DocumentSource> source, TextCodec codec, StreamOptions options)
    : source_(std::move(source)), codec_(std::move(codec)), options_(options) {
  const auto files = static_cast<int64_t>(source_->files().files.size());
  const int64_t lanes = options_.lanes;
  const int64_t groups = std::max<int64_t>(1, std::min((lanes + kLanesPerGroup - 1) / kLanesPerGroup, files / kFilesPerGroup));
  for (int64_t g = 0; g < groups; ++g) {
    auto group = std::make_unique<Group>();
    const int64_t begin = g * lanes / groups, end = (g + 1) * lanes / groups;
    group->number = g, group->first_lane = begin;
    group->lanes.resize(static_cast<size_t>(end - begin));
    groups_.push_back(std::move(group));
  }
  restart({}, std::vector<bool>(static_cast<size_t>(lanes), true));
}

StreamReader::~StreamReader() { stop(); }

int64_t StreamReader::group_of(int64_t lane) const {
  const auto after = std::upper_bound(groups_.begin(), groups_.end(), lane, [](int64_t l, const auto& g) { return l < g->first_lane; });
  return after - groups_.begin() - 1;
}

LaneStart StreamReader::beginning(int64_t lane) const {
  BlockStart start;
  start.bytes.assign(groups_[static_cast<size_t>(group_of(lane))]->lanes.size(), 0);
  start.dealt = start.bytes;
  return {std::make_shared<const BlockStart>(std::move(start)), 0};
}

void StreamReader::stop() {
  stop_ = true;
  for (const auto& group : groups_) {
    const std::lock_guard lock(group->mutex);
    group->room.notify_all();
  }
  for (const auto& group : groups_)
    if (group->thread.joinable()) group->thread.join();
  {
    const std::lock_guard lock(tasks_mutex_);
    tasks_.clear();
  }
  tasks_ready_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  stop_ = false;
}

void StreamReader::restart(const std::map<int64_t, LaneStart>& starts, const std::vector<bool>& owned) {
  stop();
  for (const auto& group : groups_) {
    group->owned.assign(owned.begin() + group->first_lane, owned.begin() + group->first_lane + static_cast<int64_t>(group->lanes.size()));
    group->queued_bytes = group->hungry = 0;
    group->ended = false;
    group->error = nullptr;
    std::shared_ptr<const BlockStart> first;
    const auto position = [](const BlockStart& b) { return std::tuple(b.epoch, b.place, b.document); };
    for (size_t l = 0; l < group->lanes.size(); ++l) {
      Group::Lane& lane = group->lanes[l];
      lane.queue.clear();
      lane.first = 0;
      if (!group->owned[l]) continue;
      const int64_t number = group->first_lane + static_cast<int64_t>(l);
      const auto found = starts.find(number);
      const LaneStart start = found == starts.end() ? beginning(number) : found->second;
      check(start.block->bytes.size() == group->lanes.size() && start.block->dealt.size() == group->lanes.size(),
            "position of lane {}: expected {} lanes in its group", number, group->lanes.size());
      lane.first = start.ordinal;
      if (!first || position(*start.block) < position(*first)) first = start.block;
    }
    group->start = first ? *first : *beginning(group->first_lane).block;
  }
}

std::shared_ptr<const StreamedDocument> StreamReader::next(int64_t lane) {
  Group& group = *groups_[static_cast<size_t>(group_of(lane))];
  const auto own = static_cast<size_t>(lane - group.first_lane);
  check(group.owned.at(own), "stream: lane {} belongs to another process", lane);
  if (workers_.empty()) {
    for (int t = 0; t < std::max(1, options_.threads); ++t) workers_.emplace_back([this] { work(); });
  }
  // A thread for each group of this process, so that all their first files are opened at once.
  for (const auto& g : groups_) {
    if (!g->thread.joinable() && std::find(g->owned.begin(), g->owned.end(), true) != g->owned.end())
      g->thread = std::thread([this, g = g.get()] { run(*g); });
  }
  std::unique_lock lock(group.mutex);
  auto& queue = group.lanes[own].queue;
  if (queue.empty()) {
    ++group.hungry;
    group.room.notify_all();
    group.ready.wait(lock, [&] { return !queue.empty() || group.ended || group.error; });
    --group.hungry;
    if (queue.empty()) {
      if (group.error) std::rethrow_exception(group.error);
      return nullptr;
    }
  }
  group.ready.wait(lock, [&] { return queue.front()->ready || group.error; });
  if (!queue.front()->ready) std::rethrow_exception(group.error);
  const std::shared_ptr<Group::Waiting> taken = std::move(queue.front());
  queue.pop_front();
  group.queued_bytes -= taken->bytes;
  group.room.notify_all();
  if (const int64_t epoch = taken->document->block->epoch; epoch > announced_epoch_) {
    announced_epoch_ = epoch;
    const auto now = std::chrono::steady_clock::now();
    if (epoch > 1 && now - announced_at_ < kAnnouncePause) return taken->document;
    announced_at_ = now;
    log_info("{} is being re-looped (epoch {})", source_->files().pattern, epoch + 1);
  }
  return taken->document;
}

void StreamReader::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(tasks_mutex_);
      tasks_ready_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (stop_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void StreamReader::tokenise(StreamedDocument& document, const Raw& raw) const {
  const Document given = {.kind = raw.kind, .text = raw.text, .learned = raw.spans, .ids = raw.ids, .loss = raw.loss, .stored = {}};
  if (encode_ids(given, codec_, document.ids, document.learned)) {
    document.ends = {document.ids.size()};
    return;
  }
  const DocumentEnd end = document_end(codec_.bos_id, codec_.eos_id);
  for (size_t at = 0; at < document.ids.size();) {
    at += end.length(document.ids.size() - at, [&](size_t i) { return document.ids[at + i]; });
    document.ends.push_back(at);
  }
}

void StreamReader::deal(Group& group, std::vector<Raw>& block, const BlockStart& start) {
  const auto n = static_cast<int64_t>(block.size());
  BlockStart here = start;
  const int64_t least = *std::min_element(here.bytes.begin(), here.bytes.end());
  for (int64_t& b : here.bytes) b -= least;
  const auto shared = std::make_shared<const BlockStart>(here);
  const Shuffle order(n, options_.shuffle, options_.seed, start.epoch,
                      fmt::format("data.stream_block.{}.{}.{}", group.number, start.place, start.document));
  for (int64_t i = 0; i < n; ++i) {
    Raw& raw = block[static_cast<size_t>(order(i))];
    const auto lane = static_cast<size_t>(std::min_element(here.bytes.begin(), here.bytes.end()) - here.bytes.begin());
    const int64_t bytes = raw.bytes(), ordinal = here.dealt[lane]++;
    here.bytes[lane] += bytes;
    if (!group.owned[lane] || ordinal < group.lanes[lane].first) continue;
    auto waiting = std::make_shared<Group::Waiting>();
    waiting->document = std::make_shared<StreamedDocument>();
    waiting->document->block = shared;
    waiting->document->ordinal = ordinal;
    waiting->bytes = bytes;
    {
      std::unique_lock lock(group.mutex);
      group.room.wait(lock, [&] { return stop_ || group.queued_bytes < kAheadBytes || group.hungry > 0; });
      if (stop_) throw Stop{};
      group.queued_bytes += bytes;
      group.lanes[lane].queue.push_back(waiting);
    }
    group.ready.notify_all();
    {
      const std::lock_guard lock(tasks_mutex_);
      tasks_.push_back([this, &group, waiting, raw = std::make_shared<Raw>(std::move(raw))] {
        std::exception_ptr error;
        try {
          tokenise(*waiting->document, *raw);
        } catch (...) {
          error = std::current_exception();
        }
        {
          const std::lock_guard guard(group.mutex);
          waiting->ready = error == nullptr;
          if (error && !group.error) group.error = error;
        }
        group.ready.notify_all();
      });
    }
    tasks_ready_.notify_one();
  }
  group.start = here;
  block.clear();
}

void StreamReader::skip(const BadLine& line) {
  const int64_t count = ++bad_lines_;
  int64_t power = 1;
  while (power < count) power *= 10;
  if (power == count) log_warning("skipped {} bad lines so far, the last at {}", with_commas(count), line.text());
}

void StreamReader::run(Group& group) {
  const auto files = static_cast<int64_t>(source_->files().files.size());
  const auto groups = static_cast<int64_t>(groups_.size());
  const int64_t window = std::max<int64_t>(1, options_.window / groups);
  try {
    std::vector<Raw> block;
    int64_t block_bytes = 0;
    BlockStart position = group.start;  // of the open block
    for (int64_t epoch = position.epoch; options_.epochs == 0 || epoch < options_.epochs; ++epoch) {
      const Shuffle order(files, options_.shuffle, options_.seed, epoch, "data.stream_files");
      const int64_t places = (files - group.number + groups - 1) / groups;
      int64_t documents = epoch == position.epoch && (position.place > 0 || position.document > 0) ? 1 : 0;
      if (epoch > position.epoch) position = {epoch, 0, 0, group.start.bytes, group.start.dealt};
      const auto flush = [&](int64_t place, int64_t document) {
        if (!block.empty()) deal(group, block, position);
        block_bytes = 0;
        position = {epoch, place, document, group.start.bytes, group.start.dealt};
      };
      for (int64_t place = position.place; place < places; ++place) {
        const int64_t skipped = place == position.place && block.empty() ? position.document : 0;
        int64_t number = 0;
        source_->read_file(static_cast<size_t>(order(place * groups + group.number)), [&](const Document& document) {
          if (stop_) throw Stop{};
          if (document.kind == Document::Kind::bad) {
            return skip(*document.bad);
          }
          if (number++ < skipped) return;
          Raw raw;
          raw.kind = document.kind;
          raw.text = document.text;
          raw.spans.assign(document.learned.begin(), document.learned.end());
          raw.ids.assign(document.ids.begin(), document.ids.end());
          raw.loss.assign(document.loss.begin(), document.loss.end());
          if (document.kind == Document::Kind::stored) {
            const int width = source_->stored_token_bytes();
            for (size_t i = 0; i < document.stored.size() / static_cast<size_t>(width); ++i)
              raw.ids.push_back(static_cast<int32_t>(stored_id(document.stored, i, width)));
          }
          if (raw.bytes() == 0) return;
          ++documents;
          block_bytes += raw.bytes();
          block.push_back(std::move(raw));
          if (static_cast<int64_t>(block.size()) >= window || block_bytes >= kBlockBytes) flush(place, number);
        });
        if (block.empty()) position.place = place + 1, position.document = 0;
      }
      flush(places, 0);
      check(documents > 0, "{}: the {} files of group {} of the stream hold no document with text", source_->files().pattern, places,
            group.number);
    }
  } catch (const Stop&) {
  } catch (...) {
    const std::lock_guard lock(group.mutex);
    group.error = std::current_exception();
  }
  {
    const std::lock_guard lock(group.mutex);
    group.ended = true;
  }
  group.ready.notify_all();
}

}  // namespace halftone
