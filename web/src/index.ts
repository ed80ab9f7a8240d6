export { RdrrError, type ErrorCode } from './errors.js';
