# Packages of the distribution, linked statically or header-only, so that a bundle only needs the torch wheel.
find_package(Threads REQUIRED)

find_path(TOMLPP_INCLUDE toml++/toml.h REQUIRED)
add_library(tomlplusplus INTERFACE)
target_include_directories(tomlplusplus SYSTEM INTERFACE "${TOMLPP_INCLUDE}")
target_compile_definitions(tomlplusplus INTERFACE TOML_HEADER_ONLY=1 TOML_ENABLE_UNRELEASED_FEATURES=0)

find_path(NLOHMANN_INCLUDE nlohmann/json.hpp REQUIRED)
add_library(json INTERFACE)
target_include_directories(json SYSTEM INTERFACE "${NLOHMANN_INCLUDE}")

find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
add_library(cli11 INTERFACE)
target_include_directories(cli11 SYSTEM INTERFACE "${CLI11_INCLUDE}")

find_path(YAML_CPP_INCLUDE yaml-cpp/yaml.h REQUIRED)
find_library(YAML_CPP_LIBRARY NAMES libyaml-cpp.a REQUIRED)
add_library(yamlcpp INTERFACE)
target_include_directories(yamlcpp SYSTEM INTERFACE "${YAML_CPP_INCLUDE}")
target_link_libraries(yamlcpp INTERFACE "${YAML_CPP_LIBRARY}")

find_path(PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(PCRE2_LIBRARY NAMES libpcre2-8.a REQUIRED)
add_library(pcre2 INTERFACE)
target_include_directories(pcre2 SYSTEM INTERFACE "${PCRE2_INCLUDE}")
target_link_libraries(pcre2 INTERFACE "${PCRE2_LIBRARY}")
target_compile_definitions(pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8 PCRE2_STATIC)

find_path(UTF8PROC_INCLUDE utf8proc.h REQUIRED)
find_library(UTF8PROC_LIBRARY NAMES libutf8proc.a REQUIRED)
add_library(utf8proc INTERFACE)
target_include_directories(utf8proc SYSTEM INTERFACE "${UTF8PROC_INCLUDE}")
target_link_libraries(utf8proc INTERFACE "${UTF8PROC_LIBRARY}")
target_compile_definitions(utf8proc INTERFACE UTF8PROC_STATIC)

find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
add_library(xxhash INTERFACE)
target_include_directories(xxhash SYSTEM INTERFACE "${XXHASH_INCLUDE}")
target_compile_definitions(xxhash INTERFACE XXH_INLINE_ALL)

# Decompression of .gz, .zst and .xz (storage/).
add_library(compression INTERFACE)
foreach(package zlib.h:libz.a zstd.h:libzstd.a lzma.h:liblzma.a)
  string(REGEX MATCH "^([^:]+):lib([^.]+)" ignored "${package}")
  string(TOUPPER "${CMAKE_MATCH_2}" upper)
  find_path(${upper}_INCLUDE "${CMAKE_MATCH_1}" REQUIRED)
  find_library(${upper}_LIBRARY NAMES "lib${CMAKE_MATCH_2}.a" REQUIRED)
  target_include_directories(compression SYSTEM INTERFACE "${${upper}_INCLUDE}")
  target_link_libraries(compression INTERFACE "${${upper}_LIBRARY}")
endforeach()

# Headers only: the library is loaded when an https:// address is read (storage/).
find_path(CURL_INCLUDE curl/curl.h REQUIRED)
add_library(curl_headers INTERFACE)
target_include_directories(curl_headers SYSTEM INTERFACE "${CURL_INCLUDE}")
target_link_libraries(curl_headers INTERFACE ${CMAKE_DL_LIBS})
