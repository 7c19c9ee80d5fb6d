# LibTorch from the wheel in .venv. The program only links libtorch_cpu and libc10: the CUDA half of the wheel (libtorch_cuda and our
# kernels) is loaded when a GPU is used, which keeps a CPU run small.
if(NOT EXISTS "${HALFTONE_PYTHON}")
  message(FATAL_ERROR "no python at ${HALFTONE_PYTHON}: run tools/setup.sh first (make does) or set HALFTONE_PYTHON")
endif()
execute_process(
  COMMAND "${HALFTONE_PYTHON}" -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
  OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE TORCH_MISSING ERROR_QUIET)
if(TORCH_MISSING OR NOT EXISTS "${TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "the torch wheel is not installed for ${HALFTONE_PYTHON}: run tools/setup.sh")
endif()
file(GLOB NVIDIA_LIB_DIRS "${TORCH_DIR}/../nvidia/*/lib")
set(TORCH_RPATH "${TORCH_DIR}/lib" ${NVIDIA_LIB_DIRS})
list(JOIN TORCH_RPATH ":" TORCH_RPATH_STRING)

add_library(torch_headers INTERFACE)
target_include_directories(torch_headers SYSTEM INTERFACE
  "${TORCH_DIR}/include" "${TORCH_DIR}/include/torch/csrc/api/include")
# C10_CUDA headers are never included; libstdc++ of the wheel uses the C++11 ABI.
target_compile_definitions(torch_headers INTERFACE _GLIBCXX_USE_CXX11_ABI=1)

# The wheel's libgomp, so that our kernels and oneDNN share one thread pool.
add_library(openmp INTERFACE)
target_compile_options(openmp INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_libraries(openmp INTERFACE "${TORCH_DIR}/lib/libgomp.so.1")

add_library(torch_libs INTERFACE)
target_link_libraries(torch_libs INTERFACE torch_headers openmp
  "${TORCH_DIR}/lib/libtorch_cpu.so" "${TORCH_DIR}/lib/libc10.so")
# As RPATH, because the wheel's own libraries inherit it; a bundle replaces it (cmake/bundle.cmake).
set(CMAKE_BUILD_RPATH ${TORCH_RPATH})
target_link_options(torch_libs INTERFACE "LINKER:--disable-new-dtags,-rpath-link,${TORCH_RPATH_STRING}")

# fmt 12.1 as shipped inside torch's headers; only this folder is exposed to the torch-free layers.
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/include")
if(NOT EXISTS "${CMAKE_BINARY_DIR}/include/fmt")
  file(CREATE_LINK "${TORCH_DIR}/include/fmt" "${CMAKE_BINARY_DIR}/include/fmt" SYMBOLIC)
endif()
# Compiled once, in fmt.cpp: header-only it costs every file that formats a line 2 s at -O1 and 5 s at -O3.
add_library(fmt STATIC "${CMAKE_SOURCE_DIR}/cmake/fmt.cpp")
target_include_directories(fmt SYSTEM PUBLIC "${CMAKE_BINARY_DIR}/include")
