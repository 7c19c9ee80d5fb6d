# One precompiled header for everything right of the torch line: costs 13 s once and saves about 4 of 6 s per file of ops/. The dev preset
# builds without it, so that each file has to include the headers that it uses.
set(HALFTONE_TORCH_LAYERS ops nn torch_ops models data checkpoint comm parallel train cli)
if(HALFTONE_PCH)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pch.cpp" CONTENT "// The target needs one source file.\n")
  add_library(torch_pch OBJECT "${CMAKE_BINARY_DIR}/pch.cpp")
  target_link_libraries(torch_pch PRIVATE base torch_libs)
  target_precompile_headers(torch_pch PRIVATE <ATen/core/Tensor.h> <ATen/TensorOperators.h> <fmt/format.h>
    <functional> <map> <memory> <optional> <string> <unordered_map> <vector>)
endif()

function(halftone_precompiled target)
  if(HALFTONE_PCH)
    get_target_property(type ${target} TYPE)
    if(NOT type STREQUAL INTERFACE_LIBRARY)
      target_precompile_headers(${target} REUSE_FROM torch_pch)
    endif()
  endif()
endfunction()
