#include "halftone/comm/presence.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "halftone/base/log.h"

namespace halftone::comm {
namespace {

// A greeting is the job's token and the rank, which rank 0 answers by kWelcome.
constexpr size_t kGreeting = sizeof(uint64_t) + sizeof(int64_t);
constexpr char kWelcome = 'w', kFarewell = 'f';

bool put(int fd, std::string_view bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

Presence::Presence(std::string address, int64_t rank, int64_t world_size)
    : address_(std::move(address)), rank_(rank), others_(world_size - 1), begun_(address_.empty()) {}

Presence::~Presence() { close_all(); }

void Presence::close_all() {
  for (const Peer& peer : peers_) ::close(peer.fd);
  if (listener_ >= 0) ::close(listener_);
  peers_.clear(), listener_ = -1;
}

std::string Presence::serve() {
  listener_ = ::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const bool six = listener_ >= 0;
  if (!six) listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int both = 0;  // IPv4 comes to the same socket
  if (six) ::setsockopt(listener_, IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  sockaddr* address = six ? reinterpret_cast<sockaddr*>(&any6) : reinterpret_cast<sockaddr*>(&any4);
  socklen_t length = six ? sizeof any6 : sizeof any4;
  if (::bind(listener_, address, length) != 0 || ::listen(listener_, SOMAXCONN) != 0 || ::getsockname(listener_, address, &length) != 0) {
    log_debug("no port for the connections of other ranks: {}", std::strerror(errno));
    close_all();
    return "";
  }
  std::random_device random;
  token_ = (static_cast<uint64_t>(random()) << 32) | random();
  return fmt::format("{} {}", ntohs(six ? any6.sin6_port : any4.sin_port), token_);
}

void Presence::join(const std::string& invitation) {
  std::istringstream text(invitation);
  std::string port;
  if (!(text >> port >> token_)) return;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address_.c_str(), port.c_str(), &hints, &found) != 0) return log_debug("{} has no address", address_);
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const bool begun = fd >= 0 && (::connect(fd, found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS);
  ::freeaddrinfo(found);
  if (!begun) {
    log_debug("no connection to {}:{}: {}", address_, port, std::strerror(errno));
    if (fd >= 0) ::close(fd);
    return;
  }
  greeting_.assign(kGreeting, '\0');
  std::memcpy(greeting_.data(), &token_, sizeof token_);
  std::memcpy(greeting_.data() + sizeof token_, &rank_, sizeof rank_);
  peers_.push_back({.fd = fd, .rank = 0});
}

void Presence::accept_peers() {
  constexpr int64_t kStrangers = 16;
  while (listener_ >= 0 && std::ssize(peers_) < others_ + kStrangers) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    peers_.push_back({.fd = fd});
  }
}

bool Presence::read(Peer& peer) {
  char bytes[64];
  ssize_t n = 0;
  while ((n = ::recv(peer.fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0 && peer.received.size() <= kGreeting)
    peer.received.append(bytes, static_cast<size_t>(n));
  const bool open = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
  if (rank_ == 0 && !peer.greeted && peer.received.size() >= kGreeting) {
    uint64_t token = 0;
    std::memcpy(&token, peer.received.data(), sizeof token);
    std::memcpy(&peer.rank, peer.received.data() + sizeof token, sizeof peer.rank);
    peer.received.erase(0, kGreeting);
    peer.greeted = token == token_ && put(peer.fd, {&kWelcome, 1});
    if (!peer.greeted) return false;
    ++greeted_;
  }
  if (rank_ != 0 && peer.received.starts_with(kWelcome)) peer.greeted = true;
  return open;
}

bool Presence::settled() const {
  if (address_.empty()) return true;
  return rank_ == 0 ? greeted_ >= others_ : begun_ && (peers_.empty() || peers_[0].greeted);
}

std::vector<int64_t> Presence::lost(c10d::Store& store) {
  constexpr const char* kInvitation = "presence";
  if (!begun_ && rank_ == 0) {
    begun_ = true;
    store.set(kInvitation, serve());
  } else if (!begun_ && store.check({kInvitation})) {
    begun_ = true;
    join(store.get_to_str(kInvitation));
  }
  accept_peers();
  std::vector<pollfd> ready;
  for (const Peer& peer : peers_) ready.push_back({peer.fd, static_cast<int16_t>(greeting_.empty() ? POLLIN : POLLOUT), 0});
  std::vector<int64_t> ranks;
  if (ready.empty() || ::poll(ready.data(), ready.size(), 0) <= 0) return ranks;
  std::vector<Peer> open;
  for (size_t i = 0; i < ready.size(); ++i) {
    Peer& peer = peers_[i];
    bool stays = ready[i].revents == 0;
    if (!stays && !greeting_.empty()) {  // connected, or refused
      stays = (ready[i].revents & (POLLERR | POLLHUP)) == 0 && put(peer.fd, greeting_);
      greeting_.clear();
    } else if (!stays) {
      stays = read(peer);
    }
    if (stays) {
      open.push_back(std::move(peer));
      continue;
    }
    ::close(peer.fd);
    if (peer.greeted && !peer.received.ends_with(kFarewell)) ranks.push_back(peer.rank);
  }
  peers_ = std::move(open);
  return ranks;
}

void Presence::leave() {
  for (Peer& peer : peers_)
    if (peer.greeted) put(peer.fd, {&kFarewell, 1});
  close_all();
}

}  // namespace halftone::comm
