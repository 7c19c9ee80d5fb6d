# make bundle: bundle/ with the stripped programs, the op library, the tests and their input files. It runs on any x86-64-v3 machine with
# glibc 2.36, libstdc++ of g++ 12 or newer, and the same torch wheel: bundle/run_tests verifies it.
# The ops as torch.ops.halftone (loaded by python/halftone). The CUDA kernels are searched beside the library.
add_library(halftone_ops SHARED $<TARGET_OBJECTS:ops> $<TARGET_OBJECTS:torch_ops>)
target_link_libraries(halftone_ops PRIVATE nn base formats quantize gemm attention fused torch_libs)
set_target_properties(halftone_ops PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
if(TARGET halftone_cuda)
  add_custom_command(TARGET halftone_ops POST_BUILD COMMAND "${CMAKE_COMMAND}" -E create_symlink
    ../bin/halftone_cuda.so "${CMAKE_BINARY_DIR}/lib/halftone_cuda.so" VERBATIM)
endif()

get_property(bundled_tests GLOBAL PROPERTY HALFTONE_TEST_PROGRAMS)
set(bundled halftone halftone_ops ${bundled_tests})
if(TARGET halftone_cuda)
  list(APPEND bundled halftone_cuda)
endif()
if(TARGET halftone_nccl)
  list(APPEND bundled halftone_nccl)
endif()
# First beside the program, then in LD_LIBRARY_PATH.
set_target_properties(${bundled} PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS ${bundled} RUNTIME DESTINATION . COMPONENT bundle EXCLUDE_FROM_ALL LIBRARY DESTINATION . COMPONENT bundle EXCLUDE_FROM_ALL)
install(FILES ${ARROW_LIBRARIES} DESTINATION . COMPONENT bundle EXCLUDE_FROM_ALL)
install(DIRECTORY "${CMAKE_SOURCE_DIR}/recipes" DESTINATION . COMPONENT bundle EXCLUDE_FROM_ALL)
install(DIRECTORY "${CMAKE_SOURCE_DIR}/tests/golden" "${CMAKE_SOURCE_DIR}/tests/assets" DESTINATION tests COMPONENT bundle EXCLUDE_FROM_ALL
  PATTERN "__pycache__" EXCLUDE)
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" DESTINATION . COMPONENT bundle EXCLUDE_FROM_ALL)
install(PROGRAMS "${CMAKE_SOURCE_DIR}/tools/run_bundled_tests" DESTINATION . RENAME run_tests COMPONENT bundle EXCLUDE_FROM_ALL)
add_custom_target(bundle
  COMMAND "${CMAKE_COMMAND}" -E rm -rf "${CMAKE_SOURCE_DIR}/bundle"
  COMMAND "${CMAKE_COMMAND}" --install "${CMAKE_BINARY_DIR}" --component bundle --strip --prefix "${CMAKE_SOURCE_DIR}/bundle"
  COMMAND du -sh "${CMAKE_SOURCE_DIR}/bundle"
  DEPENDS ${bundled} VERBATIM)
