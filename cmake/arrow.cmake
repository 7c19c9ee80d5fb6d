# Arrow C++ from the pyarrow wheel in .venv: Parquet files, and the file systems of object stores. The wheel has no CMake package; its
# versioned libraries are linked by path.
execute_process(
  COMMAND "${HALFTONE_PYTHON}" -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('pyarrow').origin))"
  OUTPUT_VARIABLE ARROW_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE ARROW_MISSING ERROR_QUIET)
file(GLOB ARROW_LIBRARIES "${ARROW_DIR}/libarrow.so.*" "${ARROW_DIR}/libparquet.so.*" "${ARROW_DIR}/libarrow_s3.so.*")
list(LENGTH ARROW_LIBRARIES found)
if(ARROW_MISSING OR NOT found EQUAL 3)
  message(FATAL_ERROR "the pyarrow wheel is not installed for ${HALFTONE_PYTHON}: run tools/setup.sh")
endif()
add_library(arrow INTERFACE)
target_include_directories(arrow SYSTEM INTERFACE "${ARROW_DIR}/include")
target_link_libraries(arrow INTERFACE ${ARROW_LIBRARIES})
target_link_options(arrow INTERFACE "LINKER:-rpath-link,${ARROW_DIR}")
list(APPEND CMAKE_BUILD_RPATH "${ARROW_DIR}")
