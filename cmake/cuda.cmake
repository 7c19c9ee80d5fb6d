# HALFTONE_CUDA=ON: the CUDA compiler of a toolkit or of the wheels (requirements-nvcc.txt). The kernels (*.cu of the torch-free layers)
# become one module, halftone_cuda.so, which the program loads when a GPU is used.
set(HALFTONE_CUDA_ARCHITECTURES 90a CACHE STRING "compute capabilities of the kernels, e.g. \"90a;100a\"")
if(NOT HALFTONE_CUDA)
  return()
endif()
set(CUDA_WHEEL "${TORCH_DIR}/../nvidia/cu13")
cmake_path(NORMAL_PATH CUDA_WHEEL)

# CUDA 13.0 or later: LibTorch's runtime library is that of 13.0.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(path_nvcc nvcc NO_CACHE)
  foreach(candidate "$ENV{CUDACXX}" "${path_nvcc}" "$ENV{CUDA_HOME}/bin/nvcc" /usr/local/cuda/bin/nvcc "${CUDA_WHEEL}/bin/nvcc")
    if(candidate AND EXISTS "${candidate}")
      execute_process(COMMAND "${candidate}" --version OUTPUT_VARIABLE version ERROR_QUIET)
      if(version MATCHES "release 13\\.")
        set(CMAKE_CUDA_COMPILER "${candidate}" CACHE FILEPATH "CUDA compiler")
        break()
      endif()
    endif()
  endforeach()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "HALFTONE_CUDA=ON, but there is no nvcc of CUDA 13: install the toolkit, or run HALFTONE_CUDA=ON "
    "tools/setup.sh, which installs the compiler wheels; or build with HALFTONE_CUDA=OFF")
endif()
if(CMAKE_CUDA_COMPILER MATCHES "/nvidia/cu13/bin/nvcc$")  # the wheel keeps its libraries in lib, nvcc looks in lib64
  set(CMAKE_CUDA_FLAGS_INIT "-L${CUDA_WHEEL}/lib")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_ARCHITECTURES "${HALFTONE_CUDA_ARCHITECTURES}")
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # linked by name below: the one that LibTorch loads
enable_language(CUDA)
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${HALFTONE_CUDA_ARCHITECTURES}: ${CMAKE_CUDA_COMPILER}")

# Headers only; the wheel contains CUTLASS' source tree.
cmake_path(SET cutlass NORMALIZE "${TORCH_DIR}/../cutlass_library/source/include")
set(CUTLASS_INCLUDE "${cutlass}" CACHE PATH "include folder of CUTLASS 4.2")
if(NOT EXISTS "${CUTLASS_INCLUDE}/cutlass/cutlass.h")
  message(FATAL_ERROR "HALFTONE_CUDA=ON, but there are no CUTLASS headers at ${CUTLASS_INCLUDE}: run HALFTONE_CUDA=ON tools/setup.sh, "
    "which installs them, or set CUTLASS_INCLUDE")
endif()

# Call once all layers are defined. Host code of the module is in *_cuda.cpp, which the layers' libraries exclude.
function(halftone_cuda_module)
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/halftone/*.cu" "${CMAKE_SOURCE_DIR}/src/halftone/gemm/*_cuda.cpp")
  add_library(halftone_cuda MODULE ${kernels})
  set_target_properties(halftone_cuda PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    BUILD_RPATH "${CUDA_WHEEL}/lib" CUDA_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden)
  target_include_directories(halftone_cuda PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_include_directories(halftone_cuda SYSTEM PRIVATE
    ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} "${CUDA_WHEEL}/include" "${CUTLASS_INCLUDE}")
  # An assert inside CUTLASS' main loop serializes the tensor-core instructions.
  file(GLOB cutlass_kernels "${CMAKE_SOURCE_DIR}/src/halftone/gemm/cutlass/*.cu")
  set_source_files_properties(${cutlass_kernels} PROPERTIES COMPILE_DEFINITIONS NDEBUG)
  # -fmad=false: kernels fuse explicitly, so that they match the CPU bit for bit (flags.cmake: -ffp-contract).
  target_compile_options(halftone_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -fmad=false>)
  target_link_libraries(halftone_cuda PRIVATE "${CUDA_WHEEL}/lib/libcudart.so.13" "${CUDA_WHEEL}/lib/libcublasLt.so.13")
endfunction()

# halftone_nccl.so: LibTorch's NCCL backend behind one function, loaded when GPU ranks connect (src/halftone/comm). nccl.h comes from the
# wheel nvidia-nccl-cu13 (requirements-cuda.txt), which tools/setup.sh installs with HALFTONE_CUDA=ON.
function(halftone_nccl_module)
  find_path(NCCL_INCLUDE nccl.h HINTS "${TORCH_DIR}/../nvidia/nccl/include")
  if(NOT NCCL_INCLUDE)
    message(STATUS "no nccl.h: built without halftone_nccl.so, so GPUs work in one process only")
    return()
  endif()
  add_library(halftone_nccl MODULE "${CMAKE_SOURCE_DIR}/src/halftone/comm/nccl_module.cpp")
  set_target_properties(halftone_nccl PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  target_include_directories(halftone_nccl PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_include_directories(halftone_nccl SYSTEM PRIVATE
    "${NCCL_INCLUDE}" ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} "${CUDA_WHEEL}/include")
  target_link_libraries(halftone_nccl PRIVATE torch_libs "${TORCH_DIR}/lib/libtorch_cuda.so" "${TORCH_DIR}/lib/libc10_cuda.so")
endfunction()
