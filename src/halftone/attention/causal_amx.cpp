#include "halftone/attention/causal_backward_blocked.h"
#include "halftone/attention/causal_forward_blocked.h"
#include "halftone/attention/operand_bf16.h"

namespace halftone::attention {
namespace {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileShapes kTileShapes;

// bf16 on AMX tiles: C in blocks of 32 x 32 (tiles 0 to 3) from two tiles of A (4, 5) and two of B (6, 7).
struct Amx : Bf16Operand {
  static void begin() { _tile_loadconfig(&kTileShapes); }
  static void end() { _tile_release(); }

  template <Start kStart>
  static void gemm(int m, int n, int k, const T* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc, const float* bias) {
    asm volatile("" ::: "memory");  // g++ does not know that tile loads read memory: earlier stores must not sink below
    const int64_t a_bytes = lda * 2, b_bytes = ldb * 4, c_bytes = ldc * 4;
    for (int i = 0; i < m; i += 32) {
      for (int j = 0; j < n; j += 32) {
        float* c_block = c + i * ldc + j;
        if constexpr (kStart == Start::zero) {
          _tile_zero(0);
          _tile_zero(1);
          _tile_zero(2);
          _tile_zero(3);
        } else if constexpr (kStart == Start::columns) {  // every row of the tile is the same sixteen floats
          _tile_loadd(0, bias + j, 0);
          _tile_loadd(1, bias + j + 16, 0);
          _tile_loadd(2, bias + j, 0);
          _tile_loadd(3, bias + j + 16, 0);
        } else {
          _tile_loadd(0, c_block, c_bytes);
          _tile_loadd(1, c_block + 16, c_bytes);
          _tile_loadd(2, c_block + 16 * ldc, c_bytes);
          _tile_loadd(3, c_block + 16 * ldc + 16, c_bytes);
        }
        const T* a_block = a + i * lda;
        const uint32_t* b_block = b + j;
        for (int s = 0; s < k; s += 32, a_block += 32, b_block += 16 * ldb) {
          _tile_loadd(6, b_block, b_bytes);
          _tile_loadd(4, a_block, a_bytes);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, b_block + 16, b_bytes);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, a_block + 16 * lda, a_bytes);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, c_block, c_bytes);
        _tile_stored(1, c_block + 16, c_bytes);
        _tile_stored(2, c_block + 16 * ldc, c_bytes);
        _tile_stored(3, c_block + 16 * ldc + 16, c_bytes);
      }
    }
  }
};

}  // namespace

void forward_amx(const AttentionForward& p) { forward_blocked<Amx, uint16_t>(p); }
void backward_amx(const AttentionBackward& p) { backward_blocked<Amx, uint16_t>(p); }

}  // namespace halftone::attention
