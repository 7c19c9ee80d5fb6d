// Test of the driver itself: a fault four decisions deep, which only coverage-guided mutation reaches. The test passes if the driver
// finds it, so a driver without coverage fails.
#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4 || data[0] != 'h') return 0;
  if (data[1] != 'a' || data[2] != 'l') return 0;
  if (data[3] != 'f') return 0;
  const std::vector<uint8_t> bytes(data, data + size);
  volatile const uint8_t* past = bytes.data() + size;
  return *past == 0 ? 0 : 0;
}
