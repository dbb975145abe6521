import './style.css';
import { App } from './app.js';
import { applyTheme } from './theme.js';

applyTheme();
new App(document.getElementById('app') ?? document.body).start();
