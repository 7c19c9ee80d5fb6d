#include "halftone/storage/blocks.h"

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone::storage {

Blocks::~Blocks() {
  {
    const Lock lock(mutex_);
    ending_ = true;
  }
  queued_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Blocks::stop() {
  const Lock lock(mutex_);
  changed_.notify_all();
}

std::string Blocks::fetch(const Source& source, int64_t block, const std::string& key) {
  const int64_t offset = block * kBlock, size = std::min(kBlock, source.object.size - offset);
  if (std::optional<std::string> kept = disk_.get(key); kept && static_cast<int64_t>(kept->size()) == size) return std::move(*kept);
  std::string data(static_cast<size_t>(size), '\0');
  retried(source.address, [&] { source.server->read(source.address, source.object, offset, data.data(), data.size()); });
  disk_.put(key, data);
  return data;
}

// Fetches the block of an entry whose state is `loading`.
Blocks::Data Blocks::load(const Source& source, int64_t block, const std::string& key, Lock& lock) {
  lock.unlock();
  Data data;
  std::exception_ptr error;
  try {
    data = std::make_shared<const std::string>(fetch(source, block, key));
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  Entry& entry = entries_.at(key);
  entry.state = error ? State::failed : State::ready, entry.data = data, entry.error = error;
  if (!entry.unread && data) read_bytes_ += entry.size;
  drop_old();
  changed_.notify_all();
  return data;
}

// A reader has the entry, which is ready.
void Blocks::read(Entry& entry) {
  if (entry.unread) entry.unread = false, unread_bytes_ -= entry.size, read_bytes_ += entry.size;
  ages_.splice(ages_.end(), ages_, entry.age);
}

void Blocks::erase(const std::string& key) {
  const auto found = entries_.find(key);
  const Entry& entry = found->second;
  if (entry.unread) {
    unread_bytes_ -= entry.size;
  } else if (entry.state == State::ready) {
    read_bytes_ -= entry.size;
  }
  ages_.erase(entry.age);
  entries_.erase(found);
}

void Blocks::drop_old() {
  for (auto age = ages_.begin(); age != ages_.end() && read_bytes_ > kKept;) {
    const std::string key = *age++;
    const Entry& entry = entries_.at(key);
    if (entry.state == State::ready && !entry.unread) erase(key);
  }
}

Blocks::Data Blocks::get(const Source& source, int64_t block) {
  const std::string key = source.key(block);
  Lock lock(mutex_);
  for (;;) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
      const int64_t size = std::min(kBlock, source.object.size - block * kBlock);
      entries_.emplace(key, Entry{State::loading, nullptr, nullptr, false, size, ages_.insert(ages_.end(), key)});
      if (Data data = load(source, block, key, lock)) return data;
      continue;  // failed
    }
    Entry& entry = found->second;
    if (entry.state == State::ready) {
      read(entry);
      Data data = entry.data;
      drop_old();
      return data;
    }
    if (entry.state == State::failed) {
      const std::exception_ptr error = entry.error;
      erase(key);  // a later reader tries again
      std::rethrow_exception(error);
    }
    if (entry.state == State::queued) {  // no thread has begun
      entry.state = State::loading;
      load(source, block, key, lock);
      continue;
    }
    check_not_stopped(source.address);
    changed_.wait(lock);
  }
}

bool Blocks::has(const Source& source, int64_t block) {
  const Lock lock(mutex_);
  return entries_.contains(source.key(block));
}

void Blocks::ahead(const std::shared_ptr<const Source>& source, int64_t block) {
  std::string key = source->key(block);
  const int64_t size = std::min(kBlock, source->object.size - block * kBlock);
  const Lock lock(mutex_);
  if (entries_.contains(key) || unread_bytes_ + size > ahead_limit_ || ending_) return;
  entries_.emplace(key, Entry{State::queued, nullptr, nullptr, true, size, ages_.insert(ages_.end(), key)});
  unread_bytes_ += size;
  tasks_.push_back({source, block, std::move(key)});
  if (idle_ == 0 && threads_.size() < kThreads) threads_.emplace_back([this] { work(); });
  queued_.notify_one();
}

void Blocks::forget(const Source& source, const std::deque<int64_t>& blocks) {
  const Lock lock(mutex_);
  for (const int64_t block : blocks) {
    const auto found = entries_.find(source.key(block));
    if (found == entries_.end() || !found->second.unread) continue;
    Entry& entry = found->second;
    if (entry.state == State::loading) {
      entry.unread = false, unread_bytes_ -= entry.size;
    } else if (entry.state == State::ready) {
      read(entry);
    } else {
      erase(std::string(found->first));
    }
  }
  drop_old();
}

void Blocks::work() {
  Lock lock(mutex_);
  for (;;) {
    ++idle_;
    queued_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    --idle_;
    if (ending_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    const auto found = entries_.find(task.key);
    if (found == entries_.end() || found->second.state != State::queued) continue;
    found->second.state = State::loading;
    load(*task.source, task.block, task.key, lock);
  }
}

}  // namespace halftone::storage
