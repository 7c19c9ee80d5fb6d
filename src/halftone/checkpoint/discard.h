#pragma once
#include <chrono>
#include <filesystem>
#include <string_view>

// Deletes folders in the background, so that neither a step nor the end of a run waits for a slow file system. One thread of low priority.
namespace halftone {

// Renames the folder at once, to `name` and an ending, so that a half-deleted folder is never mistaken for a step; then deletes it. What a
// process leaves undeleted, the next start removes (remove_step_leftovers). A failure is a warning. False where the folder could not be
// renamed or is being deleted already.
bool discard(const std::filesystem::path& folder, const std::filesystem::path& name);
inline bool discard(const std::filesystem::path& folder) { return discard(folder, folder); }
bool is_discarded(std::string_view name);  // of a folder

// Waits until everything is deleted; false where it took too long.
bool finish_discards(std::chrono::milliseconds limit);

}  // namespace halftone
