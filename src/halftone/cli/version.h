#pragma once
namespace halftone {
const char* version();
}  // namespace halftone
