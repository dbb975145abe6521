/** Import of an exported conversation into this browser. */

import { deleteVersion, type StoredConversation, storeWithoutRemoval } from './storage.js';
import { fromJson, ImportError } from './transfer.js';

const FILE_BYTES_MAX = 4 * 1024 * 1024;

/** Store the conversation in a file. Returns the version to open, which creates its items on the server, or
 * why the file cannot be imported. */
export async function importConversation(file: File): Promise<StoredConversation | string> {
  if (file.size > FILE_BYTES_MAX) {
    const size = (file.size / 1024 / 1024).toFixed(1);
    return `“${file.name}” has ${size} MB; at most 4 MB can be imported.`;
  }
  let versions: ReturnType<typeof fromJson>;
  try {
    versions = fromJson(await file.text());
  } catch (error) {
    if (error instanceof ImportError) return error.message;
    throw error;
  }
  if (versions.every(storeWithoutRemoval)) return versions[0];
  for (const { id } of versions) deleteVersion(id);
  return 'This browser’s storage for this page is full: the file was not imported. Delete other conversations first.';
}
